package verbs_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// A victim is the test binary as another process, which moves data to and from a device of the test and may be killed
// at any time. Life of a victim: it opens its device, connects over its standard streams, writes to its peer while that
// writes to it, and after a while, if it may live so long, closes everything. It says on descriptor 3 how far it is.

// victimDevice and victimLife, in the environment, make the test binary a victim.
const (
	victimDevice = "XROCE_TEST_VICTIM_DEVICE"
	victimLife   = "XROCE_TEST_VICTIM_LIFE" // how long it works before it closes; 0 is for ever
)

// How far a victim is.
const (
	stageStarted   = "started"
	stageOpen      = "open"
	stageConnected = "connected"
	stageLoaded    = "loaded" // it has moved data
	stageClosing   = "closing"
	stageClosed    = "closed"
)

// victim is what the process does.
func victim(device string) error {
	stages := os.NewFile(3, "stages")
	say := func(stage string) { fmt.Fprintln(stages, stage) }
	life, err := time.ParseDuration(os.Getenv(victimLife))
	if err != nil {
		return err
	}
	d, err := verbs.OpenDevice(context.Background(), device, verbs.Options{})
	if err != nil {
		return err
	}
	say(stageOpen)
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	buffer[len(buffer)-1] = 1
	mr, err := pd.RegMR(buffer, allAccess)
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: 16})
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	target, err := meetStranger(qp, mr, standardStreams{}, verbs.ConnectOptions{})
	if err != nil {
		return err
	}
	say(stageConnected)
	for begin, first := time.Now(), true; life == 0 || time.Since(begin) < life; first = false {
		wc, err := writeOnce(qp, cq, mr, target, len(buffer))
		if err != nil {
			return err
		}
		if wc.Status != verbs.WCSuccess {
			return fmt.Errorf("%s", qp.Explain(wc))
		}
		if first {
			say(stageLoaded)
		}
	}
	say(stageClosing)
	for _, f := range []func() error{qp.Destroy, cq.Destroy, mr.Dereg, pd.Dealloc, d.Close} {
		if err := f(); err != nil {
			return err
		}
	}
	say(stageClosed)
	return nil
}

// meetStranger connects a queue pair with one of another process and tells each where the other may write.
func meetStranger(qp *verbs.QP, mr *verbs.MR, channel standardStreams, o verbs.ConnectOptions) (target verbs.RemoteMemory, err error) {
	local, err := qp.Endpoint(o)
	if err != nil {
		return target, err
	}
	remote, err := verbs.Exchange(channel, local)
	if err != nil {
		return target, err
	}
	if err := qp.Connect(context.Background(), remote, o); err != nil {
		return target, err
	}
	return verbs.Exchange(channel, mr.Remote())
}

// writeOnce writes the first bytes of a region to the peer and waits for the completion, whatever it is.
func writeOnce(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, target verbs.RemoteMemory, length int) (verbs.WC, error) {
	if err := qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, length)},
		RemoteAddr: target.Addr, RKey: target.RKey,
	}); err != nil {
		return verbs.WC{}, err
	}
	for wcs := make([]verbs.WC, 1); ; {
		if err := cq.Wait(context.Background()); err != nil {
			return verbs.WC{}, err
		}
		if n, err := cq.Poll(wcs); n == 1 || err != nil {
			return wcs[0], err
		}
	}
}

// standardStreams are those of the process, or the other end of a victim's.
type standardStreams struct{ c net.Conn }

func (s standardStreams) Read(b []byte) (int, error) {
	if s.c != nil {
		return s.c.Read(b)
	}
	return os.Stdin.Read(b)
}

func (s standardStreams) Write(b []byte) (int, error) {
	if s.c != nil {
		return s.c.Write(b)
	}
	return os.Stdout.Write(b)
}

// process is a running victim, as its parent sees it.
type process struct {
	cmd     *exec.Cmd
	channel net.Conn
	stage   atomic.Value // string
	stages  chan string
}

func startVictim(t *testing.T, e *netlab.End, life time.Duration) *process {
	t.Helper()
	here, there := net.Pipe()
	stages, say, err := os.Pipe()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), channel: here, stages: make(chan string, 8)}
	p.cmd.Env = append(os.Environ(), victimDevice+"="+e.Name, victimLife+"="+life.String())
	p.cmd.Stderr = os.Stderr
	p.cmd.Stdin, p.cmd.Stdout = there, there
	p.cmd.ExtraFiles = []*os.File{say}
	p.cmd.WaitDelay = time.Second
	require.NoError(t, e.Namespace.Start(p.cmd))
	require.NoError(t, say.Close())
	p.stage.Store(stageStarted)
	go func() {
		defer stages.Close()
		defer close(p.stages)
		for lines := bufio.NewScanner(stages); lines.Scan(); {
			p.stage.Store(lines.Text())
			p.stages <- lines.Text()
		}
	}()
	return p
}

// await waits until the victim is so far; a victim that ends before is no failure.
func (p *process) await(t *testing.T, stage string) {
	t.Helper()
	for limit := time.After(patience); stage != stageStarted; {
		select {
		case s, ok := <-p.stages:
			if s == stage || !ok {
				return
			}
		case <-limit:
			require.Fail(t, "the victim does not get on", "it is %v and should be %s", p.stage.Load(), stage)
		}
	}
}

// kill ends the victim and returns how far it was, and when that was.
func (p *process) kill(t *testing.T) (stage string, at time.Time) {
	t.Helper()
	stage = p.stage.Load().(string)
	at = time.Now()
	_ = p.cmd.Process.Kill() // it may have closed and ended
	_ = p.channel.Close()
	_ = p.cmd.Wait()
	for range p.stages {
	}
	return stage, at
}
