//go:build linux

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResultsReplaceThoseOfBefore(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(from, "d"), 0o755))
	require.NoError(t, os.Symlink("f", filepath.Join(from, "link")))
	for _, content := range []string{"first", "2nd"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, "d/f"), []byte(content), 0o600))
		require.NoError(t, copyResults(from, to))
		got, err := os.ReadFile(filepath.Join(to, "d/f"))
		require.NoError(t, err)
		require.Equal(t, content, string(got))
		require.NoError(t, os.WriteFile(filepath.Join(to, "d/other"), nil, 0o644))
	}
	require.FileExists(t, filepath.Join(to, "d/other"), "what a run has not left stays")
	fresh := filepath.Join(to, "fresh/er")
	require.NoError(t, copyResults(from, fresh))
	require.FileExists(t, filepath.Join(fresh, "d/f"))
}

func TestQEMUTakesFoldersWithCommas(t *testing.T) {
	args := strings.Join(qemu(t.Context(), "/cache,a", "7.3", "/job,b", Options{}).Args, " ")
	require.Contains(t, args, "path=/cache,,a/root-")
	require.Contains(t, args, "path=/cache,,a/kernels/7.3/modules,readonly=on")
	require.Contains(t, args, "path=/job,,b/share ")
	require.Contains(t, args, "-initrd /job,b/initramfs")
}

func TestValidate(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XROCE_VM", cache)
	for _, x := range []struct{ kernel, nic, trouble string }{
		{"6.12", "", ""},
		{"new", "virtio", ""},
		{"new", "virtio,mq=on", ""},
		{"7.3.4", "igb", ""},
		{"", "", `no kernel ""`},
		{"6.2", "", `no kernel "6.2"`},
		{"../kernels/7.3.4", "", "no kernel"},
		{"half", "", `no kernel "half"`},
		{"new", "rtl8139,mac=1", `no network device "rtl8139"`},
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(cache, "kernels/half"), 0o755))
		require.NoError(t, os.MkdirAll(filepath.Join(cache, "kernels/7.3.4"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(cache, "kernels/7.3.4/vmlinuz"), nil, 0o644))
		if err := Validate(x.kernel, x.nic); x.trouble == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, x.trouble)
		}
	}
}

func TestTreesOfOtherPackagesAreOthers(t *testing.T) {
	require.NotEqual(t, treeOf("/c", "root", []string{"a"}), treeOf("/c", "root", []string{"a", "b"}))
	require.Equal(t, treeOf("/c", "root", []string{"a"}), treeOf("/c", "root", []string{"a"}))
}
