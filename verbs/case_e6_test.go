package verbs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// inhabitantNumber, in the environment, makes the test binary a process of TestCase_E6.
const inhabitantNumber = "XROCE_TEST_INHABITANT"

// TestCase_E6: many network namespaces at once, with a process in each that has the device and the IP address which
// others have in theirs. Each gets the data of its own peer. When the processes are killed, the namespaces can be
// closed at once, and go.
func TestCase_E6(t *testing.T) {
	netlab.RequireRoot(t)
	outside, err := netlab.NewNamespace()
	require.NoError(t, err)
	defer outside.Close()
	pairs := make([]*netlab.Pair, size(5, 25))
	var processes []*exec.Cmd
	var reports []*bufio.Reader
	for i := range pairs {
		pairs[i], err = netlab.NewPair(netlab.PairOptions{})
		require.NoError(t, err)
		defer pairs[i].Close()
		require.Equal(t, pairs[0].A.IPv4(), pairs[i].A.IPv4())
		outputs := [2]*os.File{}
		inputs := [2]*os.File{}
		for k := range outputs {
			inputs[k], outputs[1-k], err = os.Pipe()
			require.NoError(t, err)
		}
		for k, e := range []*netlab.End{&pairs[i].A, &pairs[i].B} {
			// A device outside whose peer is in the namespace goes when that does.
			_, err := netlab.Join(outside, e.Namespace, netlab.PairOptions{})
			require.NoError(t, err)
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", inhabitantNumber, 2*i+k))
			cmd.Stdin, cmd.Stdout = inputs[k], outputs[k]
			report, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, e.Namespace.Start(cmd))
			processes, reports = append(processes, cmd), append(reports, bufio.NewReader(report))
			require.NoError(t, inputs[k].Close())
			require.NoError(t, outputs[k].Close())
		}
	}
	require.Equal(t, 2*len(pairs), outsiders(t, outside))
	for i, r := range reports {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("process %d has the data of its peer\n", i), line)
	}
	for _, cmd := range processes {
		require.NoError(t, cmd.Process.Kill())
	}
	for _, cmd := range processes {
		require.Error(t, cmd.Wait())
	}
	begin := time.Now()
	for _, p := range pairs {
		begin := time.Now()
		require.NoError(t, p.Close())
		require.Less(t, time.Since(begin), time.Second)
	}
	closed := time.Since(begin)
	require.Eventually(t, func() bool { return outsiders(t, outside) == 0 }, 20*time.Second, time.Millisecond)
	t.Logf("%d namespaces closed in %v, gone after %v", 2*len(pairs), closed, time.Since(begin))
}

// outsiders is how many devices there are in a namespace besides the loopback device.
func outsiders(t *testing.T, n *netlab.Namespace) (number int) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		list, err := net.Interfaces()
		number = len(list) - 1
		return err
	}))
	return number
}

// inhabit exchanges data with the peer, which is on the other end of the standard streams, says so, and waits to be
// killed.
func inhabit(number string) error {
	i, err := newInhabitant()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := verbs.ConnectOptions{Timeout: roce.AckTimeout(18)} // a machine with so many processes is a busy one
	local, err := i.qp.Endpoint(o)
	if err != nil {
		return err
	}
	remote, err := verbs.Exchange(standardStreams{}, local)
	if err != nil {
		return err
	}
	if err := i.qp.Connect(ctx, remote, o); err != nil {
		return err
	}
	if err := i.qp.PostRecv(verbs.RecvWR{}); err != nil { // for the last WRITE
		return err
	}
	type greeting struct {
		Number string
		Memory verbs.RemoteMemory
	}
	var peer greeting
	if err := jsonline.Write(os.Stdout, greeting{number, i.mr.Remote()}); err != nil {
		return err
	}
	if err := jsonline.Read(os.Stdin, &peer); err != nil {
		return err
	}
	if err := i.write(ctx, number, peer.Memory); err != nil {
		return err
	}
	if err := await(ctx, i.qp, i.received); err != nil {
		return err
	}
	want := make([]byte, inhabitantHalf)
	fillWith(want, peer.Number)
	if !bytes.Equal(i.mr.Bytes()[inhabitantHalf:], want) {
		return fmt.Errorf("process %s has other data than those of its peer %s", number, peer.Number)
	}
	fmt.Fprintf(os.Stderr, "process %s has the data of its peer\n", number)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// inhabitantHalf is the half of a region, in bytes: the first one is written to the peer, who writes into the second.
const inhabitantHalf = 1 << 20

type inhabitant struct {
	mr           *verbs.MR
	cq, received *verbs.CQ
	qp           *verbs.QP
}

func newInhabitant() (*inhabitant, error) {
	d, err := verbs.OpenDevice(context.Background(), "veth0", verbs.Options{NoControl: true})
	if err != nil {
		return nil, err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	i := new(inhabitant)
	if i.mr, err = pd.RegMR(make([]byte, 2*inhabitantHalf), allAccess); err != nil {
		return nil, err
	}
	if i.cq, err = d.CreateCQ(verbs.CQInitAttr{CQE: 16}); err != nil {
		return nil, err
	}
	if i.received, err = d.CreateCQ(verbs.CQInitAttr{CQE: 16}); err != nil {
		return nil, err
	}
	i.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: i.cq, RecvCQ: i.received})
	return i, err
}

func fillWith(half []byte, number string) {
	copy(half, bytes.Repeat([]byte(number+" "), len(half)/(len(number)+1)))
}

// write writes the number into the peer's memory, many times, and tells it of the last one.
func (i *inhabitant) write(ctx context.Context, number string, to verbs.RemoteMemory) error {
	const writes = 20
	fillWith(i.mr.Bytes()[:inhabitantHalf], number)
	for n := range writes {
		wr := verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{i.mr.SGE(0, inhabitantHalf)},
			RemoteAddr: to.Addr + inhabitantHalf, RKey: to.RKey,
		}
		if n == writes-1 {
			wr.Opcode = verbs.WRRDMAWriteWithImm
		}
		if err := i.qp.PostSend(wr); err != nil {
			return err
		}
		if err := await(ctx, i.qp, i.cq); err != nil {
			return err
		}
	}
	return nil
}

// await waits for one completion, which must be of success.
func await(ctx context.Context, qp *verbs.QP, cq *verbs.CQ) error {
	if err := cq.Wait(ctx); err != nil {
		return err
	}
	var wc [1]verbs.WC
	if n, err := cq.Poll(wc[:]); n == 0 || err != nil {
		return fmt.Errorf("%d completions, %w", n, err)
	}
	if wc[0].Status != verbs.WCSuccess {
		return errors.New(qp.Explain(wc[0]))
	}
	return nil
}
