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

// TestLocksInCode: every mutex of the rooms that may know internal/lockorder has its place in the table, and is the one that
// the table means.
func TestLocksInCode(t *testing.T) {
	byType, _ := readRanks(t)
	used := make(map[string]bool)
	for name, p := range listPackages(t) {
		if !slices.Contains(mayKnow[name].rooms, "internal/lockorder") {
			continue
		}
		eachFile(t, p, p.GoFiles, func(file string, f *ast.File, _ *token.FileSet) {
			eachLock(f, func(lock, mutex string) {
				rankOf, ok := strings.CutPrefix(mutex, "lockorder.")
				require.True(t, ok, "%s is a %s: it needs a place in internal/lockorder", lock, mutex)
				require.Equal(t, byType[rankOf].lock, lock, "the lock that has the rank %s, in %s", rankOf, file)
				used[rankOf] = true
			})
		})
	}
	for rankOf, r := range byType {
		require.True(t, used[rankOf], "there is no lock %s", r.lock)
	}
}

// eachLock calls visit with each mutex of a file: its package, the struct or variable that it is in, and its field; and
// with its type, which is lockorder.R where that is a mutex of rank R.
func eachLock(f *ast.File, visit func(lock, mutex string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		var name *ast.Ident
		var of ast.Expr
		switch n := n.(type) {
		case *ast.TypeSpec:
			name, of = n.Name, n.Type
		case *ast.ValueSpec:
			name, of = n.Names[0], n.Type
		default:
			return true
		}
		if mutex := mutexOf(of); mutex != "" {
			visit(f.Name.Name+"."+name.Name, mutex)
		}
		if s, ok := of.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				mutex := mutexOf(field.Type)
				if mutex == "" {
					continue
				}
				own := "embedded"
				if len(field.Names) > 0 {
					own = field.Names[0].Name
				}
				visit(f.Name.Name+"."+name.Name+"."+own, mutex)
			}
		}
		return true
	})
}

// mutexOf returns what kind of mutex a type is, and "" for other types.
func mutexOf(e ast.Expr) string {
	if of, ok := e.(*ast.IndexExpr); ok && mutexOf(of.X) != "" {
		if r, ok := of.Index.(*ast.SelectorExpr); ok {
			return "lockorder." + r.Sel.Name
		}
	}
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Mutex" && s.Sel.Name != "RWMutex" && s.Sel.Name != "Cond" {
		return ""
	}
	return s.X.(*ast.Ident).Name + "." + s.Sel.Name
}
