package xroce_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCasesAreDocumented: each case that a test is named after has one line in docs/cases.md, and each line has its
// test. What only "make interop" can show has its experiment there instead.
func TestCasesAreDocumented(t *testing.T) {
	tested := make(map[string]string)
	test := regexp.MustCompile(`(?m)^func (TestCase_([A-Za-z0-9]+))\w*\(`)
	experiment := regexp.MustCompile(`(?m)^\t\{"([A-G]\d+)", "`)
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		if strings.HasPrefix(path, "hack/interop/") {
			for _, m := range experiment.FindAllStringSubmatch(string(source), -1) {
				tested[m[1]] = path
			}
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range test.FindAllStringSubmatch(string(source), -1) {
				tested[m[2]] = path
			}
		}
		return err
	}))
	require.Greater(t, len(tested), 60)
	text, err := os.ReadFile("docs/cases.md")
	require.NoError(t, err)
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| (\w+) \| .+ \|$`).FindAllStringSubmatch(string(text), -1) {
		id := m[1]
		if id == "case" {
			continue
		}
		require.False(t, documented[id], "docs/cases.md has two lines of case %s", id)
		documented[id] = true
		require.Contains(t, tested, id, "docs/cases.md has case %s, and no test is named after it", id)
	}
	for id, path := range tested {
		require.True(t, documented[id], "docs/cases.md lacks case %s of %s", id, path)
	}
}
