package queue

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/ccompiler"
	"github.com/xroce/xroce/roce"
)

// sharedFile makes memory that another process can map too.
func sharedFile(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("rings", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "rings")
	t.Cleanup(func() { file.Close() })
	require.NoError(t, file.Truncate(int64(size)))
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	return file, memory
}

// TestHeader: what a C program writes through the generated header is what the engine reads, and the other way round.
func TestHeader(t *testing.T) {
	program := ccompiler.Build(t, filepath.Join("testdata", "codec.c"), ".")
	const sendAt, recvAt, cqAt, size = 0, 4096, 8192, 12288
	file, memory := sharedFile(t, size)
	limits := SendLimits{MaxSGE: 2, MaxInline: 32}
	sends, recvs, cqs := SendLayout(2, 2, 32), RecvLayout(3, 1), CompletionLayout(5)
	for at, l := range map[int]Layout{sendAt: sends, recvAt: recvs, cqAt: cqs} {
		require.NoError(t, Create(memory[at:], l))
		binary.NativeEndian.PutUint32(memory[at+ringProducer:], 1<<32-1) // over the wrap
		binary.NativeEndian.PutUint32(memory[at+ringConsumer:], 1<<32-1)
	}
	_, send := ends(t, memory[sendAt:], sends)
	_, recv := ends(t, memory[recvAt:], recvs)
	cq, _ := ends(t, memory[cqAt:], cqs)
	send.SetState(3)
	want := ""
	for i := range uint64(4) {
		wc := WC{
			WRID: 0xABCD<<32 + i, Status: WCRemAccessErr, Opcode: WCRecv, Flags: WCWithImmediate, ByteLen: 100, ImmData: 0x12345678,
			QPN: 0x1234, PSN: 0xFEDCBA, Timestamp: 0x0102030405060708, VendorErr: 7, Syndrome: roce.Syndrome(0x62), Retries: 3, RNRRetries: 4,
		}
		require.True(t, cq.WriteCompletion(&wc))
		want += fmt.Sprintf("%x 10 128 2 100 12345678 1234 fedcba 102030405060708 7 62 3 4\n", wc.WRID)
	}
	c := exec.Command(program, strconv.Itoa(sendAt), strconv.Itoa(recvAt), strconv.Itoa(cqAt), strconv.Itoa(size))
	c.ExtraFiles, c.Stderr = []*os.File{file}, os.Stderr
	out, err := c.Output()
	require.NoError(t, err)
	require.Equal(t, want, string(out))
	require.Zero(t, cq.Used())
	require.True(t, cq.Disarm(false))

	require.Equal(t, 2, send.Available(1))
	wr := SendWR{SGList: make([]SGE, 0, limits.MaxSGE), Inline: make([]byte, 0, limits.MaxInline)}
	require.True(t, send.ReadSend(0, &wr))
	require.Equal(t, SendWR{
		WRID: 0x1122334455667788, Opcode: RDMAWriteWithImmediate, Flags: SendSignaled, ImmData: 0xAABBCCDD, RemoteAddr: 0x7000, RKey: 0x4242,
		SGList: []SGE{{0x1000, 100, 0x31}, {0x2000, 200, 0x32}}, Inline: []byte{},
	}, wr)
	require.True(t, send.ReadSend(1, &wr))
	require.Equal(t, "hello", string(wr.Inline))
	require.Equal(t, 1, recv.Available(1))
	rr := RecvWR{SGList: make([]SGE, 0, 1)}
	require.True(t, recv.ReadRecv(0, &rr))
	require.Equal(t, RecvWR{WRID: 77, SGList: []SGE{{0x9000, 4096, 0x99}}}, rr)
}

// TestDoorbellsRaceInC is TestDoorbellsRace with two threads of a C program that ring.
func TestDoorbellsRaceInC(t *testing.T) {
	rings := 200_000
	if testing.Short() {
		rings /= 100
	}
	program := ccompiler.Build(t, filepath.Join("testdata", "doorbell.c"), ".", "-pthread")
	file, memory := sharedFile(t, 8192)
	require.NoError(t, CreateDoorbells(memory))
	engine, err := NewDoorbells(memory)
	require.NoError(t, err)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(t, err)
	event := os.NewFile(uintptr(fd), "eventfd")
	defer event.Close()

	slots := [2]uint32{5, 12345}
	var posted, answered [2]*atomic.Uint32
	for i, slot := range slots {
		at := 4096 + 128*i
		binary.NativeEndian.PutUint32(memory[at+4:], slot)
		posted[i], answered[i] = word32(memory, uintptr(at)), word32(memory, uintptr(at+64))
	}
	c := exec.Command(program, strconv.Itoa(rings))
	c.ExtraFiles, c.Stderr = []*os.File{file, event}, os.Stderr
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() }) // it waits for ever for an answer that does not come
	var ended atomic.Bool
	var failure error
	finished := make(chan struct{})
	go func() {
		failure = c.Wait()
		ended.Store(true)
		_, _ = event.Write([]byte{0: 1, 7: 0}) // the engine may sleep
		close(finished)
	}()
	sleeps := 0
	for spin := 0; !ended.Load(); spin++ {
		if engine.Take(func(slot uint32) {
			for i := range slots {
				if slots[i] == slot {
					answered[i].Store(posted[i].Load())
				}
			}
		}) || spin%64 != 0 || !engine.Sleep() {
			continue
		}
		sleeps++
		_ = event.SetReadDeadline(time.Now().Add(20 * time.Second))
		var count [8]byte
		_, err := event.Read(count[:])
		require.NoError(t, err, "a ring was lost")
		engine.Awake()
	}
	<-finished
	require.NoError(t, failure)
	require.Positive(t, sleeps)
	for i := range slots {
		require.EqualValues(t, rings, answered[i].Load())
	}
}
