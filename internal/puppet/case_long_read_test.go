package puppet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// A READ request may ask for more than a window of responses, which nothing acknowledges.

// longReader is a puppet with two queue pairs of an end: one that it READs from, and another one.
func longReader(t *testing.T) (stage *puppet.Stage, end *puppet.End, reader, other *puppet.Puppet) {
	t.Helper()
	stage = puppet.NewStage(t, mem.Options{})
	end = stage.NewEnd(puppet.EndOptions{Memory: 1 << 20})
	reader = stage.NewPuppet()
	reader.Connect(end)
	// The same device as another puppet, since a puppet sends to one queue pair only.
	twin := *reader
	other = &twin
	other.ConnectQP(end.Device, end.NewQP(verbs.QPCap{}))
	return stage, end, reader, other
}

// responses counts the READ responses that have come, which must be the next ones.
func responses(t *testing.T, p *puppet.Puppet, next *roce.PSN) (count int) {
	t.Helper()
	for p.Waiting() {
		if a := p.Expect(); a.Info.Operation == roce.OperationReadResponse {
			require.Equal(t, *next, a.PSN)
			*next++
			count++
		}
	}
	return count
}

// TestLongReadAlone: with nobody else there it goes as fast as it can.
func TestLongReadAlone(t *testing.T) {
	stage, end, reader, _ := longReader(t)
	next := roce.PSN(100)
	reader.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true, RETH: end.RETH(0, 1000<<10)})
	stage.Pass(100 * time.Microsecond)
	require.Equal(t, 1000, responses(t, reader, &next))
}

// TestLongReadShares: beside another queue pair with the same peer it gets as many bytes as that moves, and 512 KiB
// in 10 ms, and everything when that moves nothing any more.
func TestLongReadShares(t *testing.T) {
	stage, end, reader, other := longReader(t)
	write := func(psn roce.PSN, length int) {
		other.Send(puppet.Packet{
			Opcode: roce.RCWriteOnly, PSN: psn, RETH: end.RETH(0, length), Payload: make([]byte, length), AckRequest: true,
		})
		stage.Pass(100 * time.Microsecond)
	}
	next := roce.PSN(100)
	write(100, 8)
	reader.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true, RETH: end.RETH(0, 1000<<10)})
	stage.Pass(time.Millisecond)
	// A packet, however short, counts for 2 KiB.
	require.Equal(t, 1, responses(t, reader, &next))
	write(101, 1024)
	require.Equal(t, 1, responses(t, reader, &next))
	end.Post(func() verbs.SendWR { // a request of the queue pair that answers, which is not another one's
		wr := end.Request(1, verbs.WRRDMAWrite, 0, 1024)
		return wr
	}())
	stage.Pass(time.Millisecond)
	require.Equal(t, 0, responses(t, reader, &next))
	stage.Pass(10 * time.Millisecond)
	require.Equal(t, 256, responses(t, reader, &next))
	stage.Pass(10 * time.Millisecond)
	require.Equal(t, 1000-258, responses(t, reader, &next))
	support.Object(t, "Device", "responses to a READ of more than 64 packets", "share the device with other QPs of the peer, by bytes")
}

// TestLongReadDuplicate: a duplicate of a READ whose responses are just leaving does not start them again; one that
// comes when many have left does, since the first may have been lost.
func TestLongReadDuplicate(t *testing.T) {
	stage, end, reader, other := longReader(t)
	request := puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true, RETH: end.RETH(0, 1000<<10)}
	next, psn := roce.PSN(100), roce.PSN(100)
	more := func(packets int) {
		for range packets {
			other.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: psn, RETH: end.RETH(0, 8), Payload: make([]byte, 8)})
			psn++
			stage.Pass(10 * time.Microsecond)
		}
	}
	more(1)
	reader.Send(request)
	more(9)
	require.Equal(t, 10, responses(t, reader, &next))
	for range 20 {
		reader.Send(request)
		more(1)
	}
	require.Equal(t, 20, responses(t, reader, &next))
	more(60)
	require.Equal(t, 60, responses(t, reader, &next))
	reader.Send(request)
	more(1)
	next = 100
	require.Equal(t, 1, responses(t, reader, &next))
}

// TestTwoLongReads: two of them beside another queue pair get the same.
func TestTwoLongReads(t *testing.T) {
	stage, end, reader, other := longReader(t)
	third := *reader
	second := &third
	second.ConnectQP(end.Device, end.NewQP(verbs.QPCap{}))
	request := puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true, RETH: end.RETH(0, 1000<<10)}
	other.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(0, 8), Payload: make([]byte, 8)})
	reader.Send(request)
	second.Send(request)
	for psn := roce.PSN(101); psn < 301; psn++ {
		other.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: psn, RETH: end.RETH(0, 8), Payload: make([]byte, 8)})
		stage.Pass(10 * time.Microsecond)
	}
	// All puppets are one device: the two READs are told by how often each PSN comes.
	times := map[roce.PSN]int{}
	for reader.Waiting() {
		if a := reader.Expect(); a.Info.Operation == roce.OperationReadResponse {
			times[a.PSN]++
		}
	}
	alone := 0
	for _, n := range times {
		if n == 1 {
			alone++
		}
	}
	require.Greater(t, len(times), 90)
	require.LessOrEqual(t, alone, 8, "of %d", len(times))
}

// TestRestingPathChange: a queue pair whose responses wait goes on when it gets another path.
func TestRestingPathChange(t *testing.T) {
	stage, end, reader, other := longReader(t)
	other.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(0, 8), Payload: make([]byte, 8)})
	reader.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true, RETH: end.RETH(0, 1000<<10)})
	stage.Pass(time.Millisecond)
	next := roce.PSN(100)
	require.Equal(t, 1, responses(t, reader, &next))
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{AH: end.QP.Query().AH}, verbs.QPAV))
	stage.Pass(100 * time.Millisecond)
	require.Equal(t, 999, responses(t, reader, &next))
}
