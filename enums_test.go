package xroce_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEnumerationsHaveNames: every exported type that has named values shows their names in texts, logs and JSON, and
// takes them back.
func TestEnumerationsHaveNames(t *testing.T) {
	// numbers are types whose values are numbers that programs tell each other, although a few have names.
	numbers := []string{"roce.QPN", "roce.PSN", "roce.MTU"}
	seen := 0
	for name, p := range listPackages(t) {
		if _, ruled := mayKnow[name]; !ruled || strings.HasPrefix(name, "internal/") || strings.HasPrefix(name, "hack/") {
			continue
		}
		named := make(map[string]bool)       // types of constants
		methods := make(map[string][]string) // of each type
		eachFile(t, p, p.GoFiles, func(_ string, f *ast.File, _ *token.FileSet) {
			for _, declaration := range f.Decls {
				switch d := declaration.(type) {
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						if value, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST {
							if kind, ok := value.Type.(*ast.Ident); ok && kind.IsExported() && value.Names[0].IsExported() {
								named[kind.Name] = true
							}
						}
					}
				case *ast.FuncDecl:
					if d.Recv == nil {
						continue
					}
					receiver := d.Recv.List[0].Type
					if pointer, ok := receiver.(*ast.StarExpr); ok {
						receiver = pointer.X
					}
					if of, ok := receiver.(*ast.Ident); ok {
						methods[of.Name] = append(methods[of.Name], d.Name.Name)
					}
				}
			}
		})
		for kind := range named {
			full := name[strings.LastIndex(name, "/")+1:] + "." + kind
			if slices.Contains(numbers, full) {
				continue
			}
			seen++
			for _, method := range []string{"String", "MarshalText", "UnmarshalText"} {
				require.Contains(t, methods[kind], method, "%s", full)
			}
		}
	}
	require.Greater(t, seen, 30)
}
