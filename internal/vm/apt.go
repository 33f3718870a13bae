//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// listsAge is how long the lists of packages of a suite are taken as they are.
const listsAge = 24 * time.Hour

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt is a private state of apt for one suite of Debian: this machine's own lists and packages are neither read nor changed,
// but its configuration is (proxies).
type apt struct {
	dir   string
	suite string
}

func openApt(ctx context.Context, cache, suite string) (*apt, error) {
	a := &apt{dir: filepath.Join(cache, "apt", suite), suite: suite}
	stamp := filepath.Join(a.dir, "updated")
	if s, err := os.Stat(stamp); err == nil && time.Since(s.ModTime()) < listsAge {
		return a, nil
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("%w: apt-get install debian-archive-keyring", err)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror(ctx), suite)
	for name, content := range map[string]string{"sources.list": source, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, "", "apt-get", "update"); err != nil {
		return nil, err
	}
	return a, os.WriteFile(stamp, nil, 0o644)
}

// mirror is the mirror that this machine uses if it runs Debian, and the public one otherwise. $XROCE_VM_MIRROR overrides it.
func mirror(ctx context.Context) string {
	if m := os.Getenv("XROCE_VM_MIRROR"); m != "" {
		return m
	}
	out, _ := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian").Output()
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
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return "", fmt.Errorf("%s %s on %s: %w: %s", program, args[0], a.suite, err, bytes.TrimSpace(failed.Stderr))
	} else if err != nil {
		return "", fmt.Errorf("%s: %w: the virtual machine is made of Debian's packages", program, err)
	}
	return string(out), nil
}

// closure fetches packages and all that they depend on, and returns the files.
func (a *apt) closure(ctx context.Context, dir string, packages ...string) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	args := append([]string{"-o", "Dir::Cache::archives=" + dir, "--download-only", "-y", "install"}, packages...)
	if _, err := a.run(ctx, "", "apt-get", args...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// fetch fetches packages without what they depend on, and returns the files. Those that do not exist are left out.
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
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
