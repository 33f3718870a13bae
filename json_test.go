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

// TestJSONNames: fields of documents that programs read have names of one style, lowerCamelCase, as the README says.
// Names of counters are keys of maps, not fields, and are those of Linux.
func TestJSONNames(t *testing.T) {
	tag := regexp.MustCompile("`json:\"([^,\"]+)")
	style := regexp.MustCompile(`^([a-z][A-Za-z0-9]*|-)$`)
	// rd_atomic is in what two ends exchange, and another name would not be understood by an older end.
	exchanged := map[string]bool{"rd_atomic": true}
	names := 0
	for _, folder := range []string{"cmd", "verbs", "roce", "internal/control"} {
		require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range tag.FindAllStringSubmatch(string(source), -1) {
				names++
				require.True(t, style.MatchString(m[1]) || exchanged[m[1]], "%s: JSON name %q is not lowerCamelCase", path, m[1])
			}
			return err
		}))
	}
	require.Greater(t, names, 100)
}
