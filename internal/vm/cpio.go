//go:build linux

package vm

import (
	"bytes"
	"fmt"
	"io/fs"
)

// archive is an initramfs: a cpio archive of the format "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) directory(name string) { a.entry(name, fs.FileMode(0o040755), nil) }

func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	a.entry(name, 0o100000|mode, content)
}

func (a *archive) close() { a.entry("TRAILER!!!", 0, nil) }

func (a *archive) entry(name string, mode fs.FileMode, content []byte) {
	a.inode++
	// magic, inode, mode, uid, gid, links, mtime, size, device (2), rdev (2), length of the name with its zero,
	// checksum
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, uint32(mode), 0, 0, 1, 0,
		len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
