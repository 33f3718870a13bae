// Command api writes the exported API of the packages that programs may depend on to docs/api, a file for each, or
// with -check says what has changed: make lint does. So no change of the API goes unseen; one that takes something
// away needs a line in CHANGELOG.md that says what to do instead.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// stable are the packages whose API is kept; docs/architecture.md says so.
var stable = []string{"verbs", "verbs/verbstest", "roce", "xsk", "bpf"}

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	log.SetFlags(0)
	if err := run(*check); err != nil {
		log.Fatal(err)
	}
}

func run(check bool) error {
	var changed []error
	for _, folder := range stable {
		lines, err := exported(folder)
		if err != nil {
			return err
		}
		path := filepath.Join("docs", "api", strings.ReplaceAll(folder, "/", "_")+".txt")
		text := strings.Join(lines, "\n") + "\n"
		if !check {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
			continue
		}
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed = append(changed, compare(folder, strings.Split(strings.TrimSuffix(string(old), "\n"), "\n"), lines))
	}
	if err := errors.Join(changed...); err != nil {
		return fmt.Errorf("%w\nIf that is meant: \"go run ./hack/api\" writes docs/api, and CHANGELOG.md says what users have to do", err)
	}
	return nil
}

// compare says which lines went and came.
func compare(folder string, old, now []string) error {
	var text []string
	for _, line := range old {
		if !slices.Contains(now, line) {
			text = append(text, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(old, line) {
			text = append(text, "+ "+line)
		}
	}
	if text == nil && slices.Equal(old, now) {
		return nil
	}
	return fmt.Errorf("the API of %s has changed:\n%s", folder, strings.Join(text, "\n"))
}

// exported lists what a package exports on Linux, a line for each constant, variable, function, method, type and
// field, sorted.
func exported(folder string) (lines []string, err error) {
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "linux", "amd64", false
	p, err := context.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(folder, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.FileExports(file)
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if d.Body = nil; ofExported(d) {
					if d.Recv != nil {
						d.Recv.List[0].Names = nil // callers do not see the name
					}
					lines = append(lines, text(set, d))
				}
			case *ast.GenDecl:
				lines = append(lines, general(set, d)...)
			}
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// ofExported says whether a function, or the type of a method, is exported.
func ofExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	receiver := d.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}

// general lists a declaration of constants, variables or types.
func general(set *token.FileSet, d *ast.GenDecl) (lines []string) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for i, name := range s.Names {
				if !name.IsExported() {
					continue
				}
				line := d.Tok.String() + " " + name.Name
				if s.Type != nil {
					line += " " + text(set, s.Type)
				}
				if d.Tok == token.CONST && i < len(s.Values) {
					line += " = " + text(set, s.Values[i])
				}
				lines = append(lines, line)
			}
		case *ast.TypeSpec:
			lines = append(lines, typeLines(set, s)...)
		}
	}
	return lines
}

func typeLines(set *token.FileSet, s *ast.TypeSpec) (lines []string) {
	line := "type " + s.Name.Name
	if s.TypeParams != nil {
		line += text(set, s.TypeParams)
	}
	if s.Assign != 0 {
		line += " ="
	}
	var fields *ast.FieldList
	switch kind := s.Type.(type) {
	case *ast.StructType:
		lines, fields = append(lines, line+" struct"), kind.Fields
	case *ast.InterfaceType:
		lines, fields = append(lines, line+" interface"), kind.Methods
	default:
		return append(lines, line+" "+text(set, s.Type))
	}
	for _, field := range fields.List {
		kind := text(set, field.Type)
		if field.Tag != nil {
			kind += " " + field.Tag.Value
		}
		for _, name := range field.Names {
			lines = append(lines, fmt.Sprintf("%s, %s %s", line, name.Name, kind))
		}
		if field.Names == nil {
			lines = append(lines, line+", "+kind)
		}
	}
	return lines
}

// text prints a node on one line, without comments.
func text(set *token.FileSet, node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, set, node); err != nil {
		log.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
