package xroce_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamedTestsExist: documents name tests, and a test that was renamed since would show nobody what it checks.
func TestNamedTestsExist(t *testing.T) {
	declared := make(map[string]bool)
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range declaration.FindAllStringSubmatch(string(source), -1) {
			declared[match[1]] = true
		}
		return err
	}))
	for document, least := range map[string]int{"docs/testing.md": 50, "docs/operating.md": 1} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		named := regexp.MustCompile(`\bTest[A-Z]\w*[A-Za-z0-9]\b`).FindAllString(string(text), -1)
		require.GreaterOrEqual(t, len(named), least)
		for _, name := range named {
			require.True(t, declared[name], "%s names %s, which does not exist", document, name)
		}
	}
}

// TestMakeHelp: "make help" lists every target with a sentence.
func TestMakeHelp(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	targets := strings.Fields(regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(string(makefile))[1])
	require.Contains(t, targets, "cross")
	out, err := exec.Command("make", "-s", "help").Output()
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		t.Skip("make is not installed")
	}
	require.NoError(t, err)
	for _, target := range targets {
		require.Regexp(t, `(?m)^  `+target+` +[A-Zx].*[.]$`, string(out))
	}
}
