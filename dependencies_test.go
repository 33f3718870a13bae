// Package xroce_test holds the house rules that the compiler does not: which room may know which, and what may not be
// done below the driver. docs/architecture.md explains them.
package xroce_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/xroce/xroce/"

type goPackage struct {
	ImportPath   string
	Dir          string
	Standard     bool
	Imports      []string
	Deps         []string
	GoFiles      []string
	CgoFiles     []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// listPackages returns the packages of the module, keyed by their path without the module's.
func listPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json", "./...").Output()
	require.NoError(t, err)
	packages := make(map[string]goPackage)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		packages[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	require.Contains(t, packages, "roce/transport")
	return packages
}

// forAll is the room that every one may know.
const forAll = "internal/enum"

// mayKnow lists for every room which other rooms it may depend on, directly or not. Rooms with standard are limited to
// the standard library beside them.
var mayKnow = map[string]struct {
	rooms    []string
	standard bool
}{
	"roce":           {standard: true},
	"roce/memory":    {rooms: []string{"roce"}, standard: true},
	"roce/queue":     {rooms: []string{"roce"}, standard: true},
	"roce/transport": {rooms: []string{"roce", "roce/memory", "roce/queue"}, standard: true},
	"roce/link":      {rooms: []string{"roce"}, standard: true},
	"roce/link/mem":  {rooms: []string{"roce", "roce/link", "internal/lockorder"}},
	"roce/link/xdp": {rooms: []string{
		"roce", "roce/link", "xsk", "bpf", "internal/netns", "internal/refusal", "internal/lockorder",
	}},
	"roce/link/loop":    {standard: true},
	"roce/link/capture": {rooms: []string{"roce"}, standard: true},
	"roce/driver": {rooms: []string{
		"roce", "roce/link", "roce/link/capture", "roce/link/loop", "roce/memory", "roce/queue", "roce/transport",
		"internal/backlog", "internal/lockorder",
	}},
	"xsk":                {rooms: []string{"internal/refusal", "internal/lockorder"}},
	"bpf":                {rooms: []string{"internal/refusal", "internal/lockorder"}},
	"internal/refusal":   {},
	"internal/netns":     {},
	"internal/pcapng":    {standard: true},
	"internal/lockorder": {standard: true},
	"internal/backlog":   {rooms: []string{"internal/lockorder"}, standard: true},
	"internal/control":   {rooms: []string{"internal/jsonline"}},
	"internal/opener": {rooms: []string{
		"roce", "roce/link", "roce/link/capture", "roce/link/loop", "roce/memory", "roce/queue", "roce/transport", "roce/driver", "internal/backlog",
		"internal/lockorder",
	}},
	"hack/rawprobe": {}, // measures what the others are measured against
	"verbs": {rooms: []string{
		"roce", "roce/link", "roce/link/capture", "roce/link/loop", "roce/link/xdp", "roce/memory", "roce/queue",
		"roce/transport", "roce/driver", "xsk", "bpf", "internal/netns", "internal/jsonline", "internal/control",
		"internal/pcapng", "internal/refusal", "internal/backlog", "internal/opener", "internal/lockorder",
	}},
	"verbs/verbstest": {rooms: []string{
		"roce", "roce/link", "roce/link/capture", "roce/link/loop", "roce/link/mem", "roce/link/xdp", "roce/memory", "roce/queue",
		"roce/transport", "roce/driver", "xsk", "bpf", "internal/netns", "internal/jsonline", "internal/control", "internal/pcapng",
		"internal/refusal", "internal/backlog", "internal/opener", "internal/lockorder", "verbs",
	}},
}

func TestArrowsPointDown(t *testing.T) {
	packages := listPackages(t)
	for name, rule := range mayKnow {
		p, found := packages[name]
		require.True(t, found, "package %s is gone: change the rules with it", name)
		for _, dep := range p.Deps {
			own, isOwn := strings.CutPrefix(dep, module)
			switch {
			case own == forAll:
			case isOwn:
				require.Contains(t, rule.rooms, own, "%s depends on %s", name, own)
			case rule.standard:
				require.True(t, isStandard(dep), "%s depends on %s, which is not in the standard library", name, dep)
			}
		}
	}
	for name, p := range packages {
		if _, ruled := mayKnow[name]; !ruled {
			allowed := strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "internal/") ||
				strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "hack/") || p.ImportPath+"/" == module
			require.True(t, allowed, "package %s has no rule", name)
		}
		// The data path below verbs is reached through verbs and the link that joins it.
		for _, imported := range p.Imports {
			own := strings.TrimPrefix(imported, module)
			if (own == "xsk" || own == "bpf") && name != "roce/link/xdp" {
				require.Fail(t, "imports", "%s imports %s, which only roce/link/xdp may", name, own)
			}
		}
	}
}

// isStandard says whether an import path is one of the standard library, vendored parts included.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") || strings.HasPrefix(path, "vendor/")
}

// passive are the rooms without goroutines, clock and sockets: a run is a function of what goes in.
var passive = []string{"roce", "roce/memory", "roce/queue", "roce/transport", "roce/link/loop", "roce/link/capture"}

var clockNames = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

func TestPassiveRooms(t *testing.T) {
	packages := listPackages(t)
	for _, name := range passive {
		p := packages[name]
		for _, imported := range p.Imports {
			require.NotContains(t, []string{"net", "os", "math/rand", "crypto/rand", "syscall", "context"}, imported, "%s", name)
		}
		eachFile(t, p, p.GoFiles, func(file string, f *ast.File, _ *token.FileSet) {
			for _, i := range f.Imports {
				renamed := i.Name != nil && slices.Contains([]string{`"time"`, `"math/rand/v2"`}, i.Path.Value)
				require.False(t, renamed, "%s gives %s another name", file, i.Path.Value)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					require.Fail(t, "goroutine", file)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
						require.NotContains(t, clockNames, n.Sel.Name, "%s reads the clock", file)
					}
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "rand" {
						require.Contains(t, []string{"New", "NewPCG", "Rand"}, n.Sel.Name, "%s draws from the process's random source", file)
					}
				}
				return true
			})
		})
	}
}

func TestUnsafeHasItsPlaces(t *testing.T) {
	for name, p := range listPackages(t) {
		require.Empty(t, p.CgoFiles, "%s uses cgo", name)
		files := slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles)
		eachFile(t, p, files, func(file string, f *ast.File, _ *token.FileSet) {
			for _, i := range f.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				base := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test")
				if path == "unsafe" && !strings.HasSuffix(base, "_unsafe") {
					require.Fail(t, "unsafe", "%s imports unsafe: only files named _unsafe.go may", file)
				}
			}
		})
	}
}

func eachFile(t *testing.T, p goPackage, files []string, visit func(string, *ast.File, *token.FileSet)) {
	t.Helper()
	for _, file := range files {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		visit(file, f, set)
	}
}
