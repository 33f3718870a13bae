//go:build !linux

package main

import (
	"net"
	"os"
	"syscall"

	"github.com/xroce/xroce/internal/netns"
)

const self = ""

func nameProcess(string) {}

func socketPair() (a, b *os.File, err error) { return nil, nil, netns.ErrNotSupported }

func inheritedSocket(uintptr) (net.Conn, error) { return nil, netns.ErrNotSupported }

func terminal(*os.File) bool { return false }

func ownGroup() *syscall.SysProcAttr { return nil }

func inodeOf(string) (inode uint64, ok bool) { return 0, false }

func bothFamilies(string, string, syscall.RawConn) error { return nil }
