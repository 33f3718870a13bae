//go:build linux

package guest

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLateAnswer: what an end answers after its time is not taken for the answer to the next command.
func TestLateAnswer(t *testing.T) {
	e := &end{name: "slow", start: func() *exec.Cmd {
		return exec.Command("sh", "-c", `read open; echo '{"information":"here"}'; read wait; sleep 0.3; echo '{"state":"late"}'; read destroy; echo '{"state":"destroyed"}'; cat`)
	}}
	information, err := e.open(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "here", information)
	_, err = e.do(command{Do: "wait", Seconds: -29.9})
	require.ErrorIs(t, err, errDead)
	_, err = e.do(command{Do: "destroy"})
	require.ErrorIs(t, err, errDead)
	e.kill()
	_, err = e.open(t.TempDir())
	require.NoError(t, err)
	e.kill()
}
