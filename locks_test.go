package xroce_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rank is a row of the table of locks.
type rank struct {
	row  string // a number, or leaf
	lock string // package, type and field
}

// readRanks returns the table as internal/lockorder has it, by the names of its types and in order.
func readRanks(t *testing.T) (byType map[string]rank, inOrder []rank) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "internal/lockorder/ranks.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	byType = make(map[string]rank)
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		results := function.Body.List[0].(*ast.ReturnStmt).Results
		r := rank{row: "leaf"}
		if literal, ok := results[0].(*ast.BasicLit); ok {
			r.row = literal.Value
		}
		r.lock, err = strconv.Unquote(results[1].(*ast.BasicLit).Value)
		require.NoError(t, err)
		byType[function.Recv.List[0].Type.(*ast.Ident).Name] = r
		inOrder = append(inOrder, r)
	}
	require.Contains(t, inOrder, rank{"1", "verbs.belongings.life"})
	require.Contains(t, inOrder, rank{"leaf", "backlog.List.Mu"})
	return byType, inOrder
}

// TestLocksInDocument: docs/architecture.md has the table of locks that is asserted, row by row.
func TestLocksInDocument(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Locks\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []rank
	name := regexp.MustCompile("`([^`]+)`")
	for _, line := range regexp.MustCompile("(?m)^\\| (?:(\\d+) \\| )?(`[^|]+) \\|").FindAllStringSubmatch(section, -1) {
		row := line[1]
		if row == "" {
			row = "leaf"
		}
		for _, lock := range name.FindAllStringSubmatch(line[2], -1) {
			documented = append(documented, rank{row, lock[1]})
		}
	}
	_, asserted := readRanks(t)
	require.Equal(t, rows(asserted), rows(documented))
	require.Equal(t, leaves(asserted), leaves(documented))
}

// rows returns the locks with a row, in their order.
func rows(list []rank) []rank {
	return slices.DeleteFunc(slices.Clone(list), func(r rank) bool { return r.row == "leaf" })
}

// leaves returns the locks without a row, which have no order.
func leaves(list []rank) []string {
	var names []string
	for _, r := range list {
		if r.row == "leaf" {
			names = append(names, r.lock)
		}
	}
	slices.Sort(names)
	return names
}

// TestLocksInCode: every mutex of the rooms that may know internal/lockorder has its place in the table, and is the one
// that the table means.
func TestLocksInCode(t *testing.T) {
	byType, _ := readRanks(t)
	used := make(map[string]bool)
	for name, p := range listPackages(t) {
		if !slices.Contains(mayKnow[name].rooms, "internal/lockorder") {
			continue
		}
		eachFile(t, p, p.GoFiles, func(file string, f *ast.File, _ *token.FileSet) {
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && of(s, "sync") {
					without := []string{"Mutex", "RWMutex", "Locker", "Cond", "NewCond"}
					require.NotContains(t, without, s.Sel.Name, "%s: a lock needs a row in internal/lockorder", file)
				}
				return true
			})
			eachLock(f, func(lock, rank string) {
				require.Equal(t, byType[rank].lock, lock, "the lock that has the rank %s, in %s", rank, file)
				used[rank] = true
			})
		})
	}
	for name, r := range byType {
		require.True(t, used[name], "there is no lock %s", r.lock)
	}
}

// eachLock calls visit with each mutex of internal/lockorder in a file: its package, the type or variable that it is a
// field of, and the field; and with the type of its rank.
func eachLock(f *ast.File, visit func(lock, rank string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		var name *ast.Ident
		var typ ast.Expr
		switch n := n.(type) {
		case *ast.TypeSpec:
			name, typ = n.Name, n.Type
		case *ast.ValueSpec:
			name, typ = n.Names[0], n.Type
		}
		s, ok := typ.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range s.Fields.List {
			i, ok := field.Type.(*ast.IndexExpr)
			if !ok {
				continue
			}
			if rank, ok := i.Index.(*ast.SelectorExpr); ok && of(rank, "lockorder") {
				for _, own := range field.Names {
					visit(f.Name.Name+"."+name.Name+"."+own.Name, rank.Sel.Name)
				}
			}
		}
		return true
	})
}

// of says whether a name is one of a package.
func of(s *ast.SelectorExpr, name string) bool {
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == name
}
