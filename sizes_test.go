package xroce_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Most lines that a function may have, and a file of the data path.
const (
	functionLines = 80
	fileLines     = 500
)

// dataPath are the folders whose files are read from top to bottom: the way of a packet.
var dataPath = []string{"roce", "xsk", "verbs"}

// TestSizes: functions and files of the data path stay short enough to be read at once.
func TestSizes(t *testing.T) {
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		line := func(p token.Pos) int { return set.Position(p).Line }
		room, _, _ := strings.Cut(filepath.ToSlash(path), "/")
		for _, d := range dataPath {
			if room == d && !strings.HasSuffix(path, "_test.go") {
				require.LessOrEqual(t, line(file.FileEnd), fileLines, "lines of %s", path)
			}
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := filepath.ToSlash(filepath.Dir(path)) + "." + f.Name.Name
			require.LessOrEqual(t, line(f.End())-line(f.Pos())+1, functionLines, "lines of %s in %s", name, path)
		}
		return nil
	}))
}
