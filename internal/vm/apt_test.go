//go:build linux

package vm

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program puts a shell script in the place of a program for the rest of the test.
func program(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// requireKeyring skips where the machine is not Debian's, but not in CI.
func requireKeyring(t *testing.T) {
	t.Helper()
	if !exists(keyring) {
		require.NotEqual(t, "true", os.Getenv("CI"), "no "+keyring)
		t.Skip("no " + keyring)
	}
}

func TestOldListsDoWithoutANetwork(t *testing.T) {
	requireKeyring(t)
	t.Setenv("XROCE_VM_MIRROR", "http://none.invalid")
	program(t, "apt-get", `echo "no network" >&2; exit 100`)
	cache := t.TempDir()
	_, err := openApt(t.Context(), cache, "stable", func(string) {})
	require.ErrorContains(t, err, "no network", "without any lists")

	stamp := filepath.Join(cache, "apt", "stable", "updated")
	old := time.Now().Add(-48 * time.Hour)
	require.NoError(t, os.WriteFile(stamp, nil, 0o644))
	require.NoError(t, os.Chtimes(stamp, old, old))
	sources := filepath.Join(cache, "apt", "stable", "sources.list")
	require.NoError(t, os.WriteFile(sources, []byte("the mirror of the lists"), 0o644))
	var heard []string
	for range 2 { // the second time, the network is not tried
		_, err = openApt(t.Context(), cache, "stable", func(what string) { heard = append(heard, what) })
		require.NoError(t, err)
	}
	content, err := os.ReadFile(sources)
	require.NoError(t, err)
	require.Equal(t, "the mirror of the lists", string(content))
	require.Len(t, heard, 1)
	require.Contains(t, heard[0], "known on "+old.Format(time.DateOnly))
	require.Contains(t, heard[0], "no network")
}

func TestPackagesThatAreGoneAreLookedUpAnew(t *testing.T) {
	requireKeyring(t)
	t.Setenv("XROCE_VM_MIRROR", "http://none.invalid")
	dir := t.TempDir()
	t.Setenv("DIR", dir)
	// Before an update it fetches one package of two and fails.
	program(t, "apt-get", `
case "$*" in
*" update "*) echo update >>$DIR/calls; touch $DIR/new; exit ;;
esac
echo install >>$DIR/calls
if [ -e $DIR/new ]; then
	touch $DIR/archives/a_2.deb $DIR/archives/b_2.deb
else
	touch $DIR/archives/a_1.deb; exit 100
fi`)
	// A process that was killed has left this one.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "archives"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "archives", "a_0.deb"), nil, 0o644))
	a := &apt{dir: filepath.Join(dir, "apt"), suite: "stable"}
	var files []string
	require.NoError(t, a.withLists(t.Context(), func() (err error) {
		files, err = a.closure(t.Context(), filepath.Join(dir, "archives"), "a")
		return err
	}))
	require.Equal(t, []string{filepath.Join(dir, "archives/a_2.deb"), filepath.Join(dir, "archives/b_2.deb")}, files,
		"no version beside another one")
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	require.Equal(t, "install\nupdate\ninstall\n", string(calls))

	failed := 0
	require.ErrorIs(t, a.withLists(t.Context(), func() error { failed++; return os.ErrInvalid }), os.ErrInvalid)
	require.Equal(t, 1, failed, "lists that are up to date are not brought up to date")
}

func TestUnpackEndsWithTar(t *testing.T) {
	program(t, "dpkg-deb", "exec cat /dev/zero")
	program(t, "tar", `echo "disk full" >&2; exit 2`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := tree(filepath.Join(t.TempDir(), "tree")).unpack(ctx, []string{"a.deb"})
	require.ErrorContains(t, err, "disk full")
	require.NoError(t, ctx.Err(), "dpkg-deb waited for a reader")
}
