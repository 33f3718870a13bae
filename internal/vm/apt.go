//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// listsAge is how long the lists of packages of a suite are taken as they are.
const listsAge = 24 * time.Hour

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt is a private state of apt for one suite of Debian: this machine's own lists and packages are neither read nor
// changed, but its configuration is (proxies).
type apt struct {
	dir     string
	suite   string
	updated bool // by this process
}

// openApt brings the lists up to date if they are old. Where that fails, such as without a network, old ones do: what
// is made of them may be there already.
func openApt(ctx context.Context, cache, suite string, progress func(string)) (*apt, error) {
	a := &apt{dir: filepath.Join(cache, "apt", suite), suite: suite}
	s, err := os.Stat(a.stamp())
	if err == nil && time.Since(s.ModTime()) < listsAge {
		return a, nil
	}
	there := err == nil
	if err := a.update(ctx); err != nil {
		if !there || ctx.Err() != nil {
			return nil, err
		}
		progress(fmt.Sprintf("go on with the packages known on %s: %v", s.ModTime().Format(time.DateOnly), err))
		// The next try is in an hour: each takes until the network's timeouts.
		if err := os.Chtimes(a.stamp(), time.Time{}, time.Now().Add(time.Hour-listsAge)); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// stamp is a file as old as the lists are taken to be.
func (a *apt) stamp() string { return filepath.Join(a.dir, "updated") }

// update brings the lists up to date.
func (a *apt) update(ctx context.Context) error {
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("%w: apt-get install debian-archive-keyring", err)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
	}
	// The lists belong to their mirror, so old ones go with the old mirror.
	sources := filepath.Join(a.dir, "sources.list")
	old, err := os.ReadFile(sources)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror(ctx), a.suite)
	for path, content := range map[string]string{sources: source, filepath.Join(a.dir, "status"): ""} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	// By default, a mirror that cannot be reached is a warning.
	if _, err := a.run(ctx, "", "apt-get", "update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		if len(old) > 0 {
			err = errors.Join(err, os.WriteFile(sources, old, 0o644))
		}
		return err
	}
	a.updated = true
	return os.WriteFile(a.stamp(), nil, 0o644)
}

// withLists calls f, and once more with lists brought up to date if it fails with older ones: a mirror has no old
// packages.
func (a *apt) withLists(ctx context.Context, f func() error) error {
	err := f()
	if err == nil || a.updated || ctx.Err() != nil {
		return err
	}
	if updateErr := a.update(ctx); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	return f()
}

// mirror is the mirror that this machine uses if it runs Debian, and the public one otherwise. $XROCE_VM_MIRROR
// overrides it.
func mirror(ctx context.Context) string {
	if m := os.Getenv("XROCE_VM_MIRROR"); m != "" {
		return m
	}
	out, _, _ := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"))
	for uri := range strings.FieldsSeq(string(out)) {
		if !strings.Contains(uri, "security") {
			return uri
		}
	}
	return "http://deb.debian.org/debian"
}

// run runs a program of apt on the private state, in the folder dir, and returns what it prints.
func (a *apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	var all []string
	for _, option := range []string{
		"Dir::Etc::sourcelist=" + a.dir + "/sources.list", "Dir::Etc::sourceparts=/dev/null",
		"Dir::Etc::preferences=/dev/null", "Dir::Etc::preferencesparts=/dev/null",
		"Dir::State=" + a.dir, "Dir::State::lists=" + a.dir + "/lists", "Dir::State::status=" + a.dir + "/status",
		"Dir::Cache=" + a.dir + "/cache", "APT::Sandbox::User=", "APT::Architecture=amd64", "APT::Architectures=amd64",
		"APT::Install-Recommends=0", "Acquire::Languages=none", "Acquire::Retries=3", "Debug::NoLocking=1",
	} {
		all = append(all, "-o", option)
	}
	cmd := exec.CommandContext(ctx, program, append(append(all, "-qq"), args...)...)
	cmd.Dir = dir
	out, trouble, err := output(cmd)
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return "", fmt.Errorf("%s %s on %s: %w: %s", program, args[0], a.suite, err, trouble)
	} else if err != nil {
		return "", fmt.Errorf("%s: %w: the virtual machine is made of Debian's packages", program, err)
	}
	return string(out), nil
}

// closure fetches packages and all that they depend on into a folder made anew, and returns the files.
func (a *apt) closure(ctx context.Context, dir string, packages ...string) ([]string, error) {
	// Files of before may be other versions of the same packages.
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	args := append([]string{"-o", "Dir::Cache::archives=" + dir, "--download-only", "-y", "install"}, packages...)
	if _, err := a.run(ctx, "", "apt-get", args...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// fetch fetches packages without what they depend on into a folder made anew, and returns the files. Those that do
// not exist are left out.
func (a *apt) fetch(ctx context.Context, dir string, packages ...string) ([]string, error) {
	var there []string
	for _, p := range packages {
		if _, err := a.run(ctx, "", "apt-cache", "show", p); err == nil {
			there = append(there, p)
		}
	}
	if len(there) == 0 {
		return nil, fmt.Errorf("%s has none of the packages %s", a.suite, strings.Join(packages, ", "))
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, dir, "apt-get", append([]string{"download"}, there...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// kernel is the version of the suite's kernel, such as "6.12.57+deb13-amd64".
func (a *apt) kernel(ctx context.Context) (string, error) {
	out, err := a.run(ctx, "", "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return "", err
	}
	for word := range strings.FieldsSeq(out) {
		if version, ok := strings.CutPrefix(word, "linux-image-"); ok && version != "amd64" {
			return version, nil
		}
	}
	return "", fmt.Errorf("linux-image-amd64 of %s depends on no kernel", a.suite)
}
