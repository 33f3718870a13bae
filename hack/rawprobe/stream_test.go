//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJudge: the rate of a run that lost more than one frame in a thousand is not a rate of delivered frames.
func TestJudge(t *testing.T) {
	require.NoError(t, count{Frames: 100_000}.judge(100_000))
	require.NoError(t, count{Frames: 99_900}.judge(100_000))
	require.EqualError(t, count{Frames: 99_899}.judge(100_000), "99899 of 100000 frames arrived: more than 0.1 % are lost")
	require.EqualError(t, count{Frames: 100_001}.judge(100_000), "100001 frames arrived, and 100000 were sent")
	require.EqualError(t, count{Frames: 100_000, Damaged: 1}.judge(100_000), "1 of 100000 frames arrived damaged")
	require.EqualError(t, count{Frames: 100_000, Error: "broken"}.judge(100_000), "receiver: broken")
}
