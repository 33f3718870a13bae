package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// smallestFile and largestArchive in bytes. Less than the first is over too soon to be measured.
	smallestFile   = 64 << 20
	largestArchive = 256 << 20
)

// demoFile is what the demo moves: a file, whose descriptor the active process inherits, or a tar archive of a Go
// toolchain that it makes.
type demoFile struct {
	Toolchain string `json:"toolchain,omitempty"` // directory; empty for a file
	Size      int    `json:"size"`                // bytes
}

// chooseFile looks at the file of that name, or at the machine's Go toolchain if name is empty. The file, if there is
// one, belongs to the caller.
func chooseFile(ctx context.Context, name string) (chosen demoFile, opened *os.File, err error) {
	if name != "" {
		opened, chosen.Size, err = openRegular(name)
		return chosen, opened, err
	}
	const instead = "name a file of at least 64 MiB with --file"
	chosen.Toolchain, err = findToolchain(ctx)
	if err != nil {
		return demoFile{}, nil, usage("%w: %s", err, instead)
	}
	archive, err := newArchive(chosen.Toolchain)
	if err != nil {
		return demoFile{}, nil, usage("Go toolchain in %s: %w: %s", chosen.Toolchain, err, instead)
	}
	if chosen.Size = archive.size; chosen.Size < smallestFile {
		return demoFile{}, nil, usage("the Go toolchain in %s makes an archive of only %s: %s",
			chosen.Toolchain, byteCount(uint64(chosen.Size)), instead)
	}
	return chosen, nil, nil
}

func openRegular(name string) (file *os.File, size int, err error) {
	// Looked at before it is opened: to open a named pipe would block.
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, 0, usage("--file: %w", err)
	case !info.Mode().IsRegular():
		return nil, 0, usage("--file: %s is no regular file", name)
	case info.Size() < smallestFile:
		return nil, 0, usage("--file: %s has %s, the demo needs at least %s to measure anything",
			name, byteCount(uint64(info.Size())), byteCount(smallestFile))
	}
	if file, err = os.Open(name); err != nil {
		return nil, 0, usage("--file: %w", err)
	}
	return file, int(info.Size()), nil
}

// checkMemory says if both processes cannot hold the file. A machine that does not tell is trusted.
func (f demoFile) checkMemory() error {
	available, ok := availableMemory()
	if need := 2 * uint64(f.Size); ok && need > available {
		return usage("both processes hold the file, which takes %s of memory, but only %s are available: choose a smaller --file",
			byteCount(need), byteCount(available))
	}
	return nil
}

// availableMemory returns MemAvailable of /proc/meminfo in bytes.
func availableMemory() (uint64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	_, rest, found := strings.Cut(string(text), "MemAvailable:")
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		return 0, false
	}
	kibibytes, err := strconv.ParseUint(fields[0], 10, 54)
	return kibibytes << 10, err == nil
}

// load fills memory, which has the size of the file, with its content. opened is the file unless it is a toolchain.
func (f demoFile) load(memory []byte, opened io.Reader) error {
	if f.Toolchain == "" {
		if _, err := io.ReadFull(opened, memory); err != nil {
			return fmt.Errorf("read the file: %w", err)
		}
		return nil
	}
	archive, err := newArchive(f.Toolchain)
	if err == nil && archive.size != len(memory) {
		err = fmt.Errorf("changed from %d to %d bytes", len(memory), archive.size)
	}
	if err == nil {
		err = archive.write(memory)
	}
	if err != nil {
		return fmt.Errorf("archive of the Go toolchain in %s: %w", f.Toolchain, err)
	}
	return nil
}

// findToolchain returns the directory of a Go toolchain.
func findToolchain(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, "go", "env", "GOROOT")
	command.Dir = "/" // no go.mod that asks for another toolchain
	command.Env = append(os.Environ(), "GOTOOLCHAIN=local")
	candidates := []string{"/usr/local/go", "/usr/lib/go"} // root's PATH often lacks it
	if out, err := command.Output(); err == nil {
		candidates = append([]string{strings.TrimSpace(string(out))}, candidates...)
	}
	for _, root := range candidates {
		if info, err := os.Stat(filepath.Join(root, "src")); root != "" && err == nil && info.IsDir() {
			return root, nil
		}
	}
	return "", errors.New("no Go toolchain was found to make an archive of")
}

// archive is a tar archive that is yet to be made.
type archive struct {
	entries []archiveEntry
	size    int // bytes
}

type archiveEntry struct {
	path   string
	header tar.Header
}

// newArchive lists the regular files under bin, pkg and src of a toolchain, in lexical order and as many as fit.
func newArchive(root string) (*archive, error) {
	const block, trailer = 512, 1024 // POSIX ustar
	a := &archive{size: trailer}
	for _, part := range []string{"bin", "pkg", "src"} {
		top, err := filepath.EvalSymlinks(filepath.Join(root, part))
		if err != nil {
			continue // a package of a distribution may lack some
		}
		err = filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			inside := path.Join("go", part, filepath.ToSlash(strings.TrimPrefix(name, top)))
			size := block + (int(info.Size())+block-1)/block*block
			if len(inside) > 100 || a.size+size > largestArchive {
				return nil // the header holds no longer name
			}
			a.size += size
			a.entries = append(a.entries, archiveEntry{path: name, header: tar.Header{
				Typeflag: tar.TypeReg, Name: inside, Size: info.Size(), Mode: int64(info.Mode().Perm()),
				ModTime: info.ModTime().Truncate(time.Second), Format: tar.FormatUSTAR,
			}})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// write makes the archive in memory of its size.
func (a *archive) write(memory []byte) error {
	out := bytes.NewBuffer(memory[:0])
	w := tar.NewWriter(out)
	for _, entry := range a.entries {
		if err := entry.write(w); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if out.Len() != len(memory) {
		return fmt.Errorf("made %d bytes instead of %d", out.Len(), len(memory))
	}
	return nil
}

func (e *archiveEntry) write(w *tar.Writer) error {
	file, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := w.WriteHeader(&e.header); err != nil {
		return err
	}
	_, err = io.CopyN(w, file, e.header.Size)
	return err
}
