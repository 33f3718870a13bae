package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGenerated: what is committed is what the table gives.
func TestGenerated(t *testing.T) {
	files, err := outputs()
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", "..", "roce", "queue", name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s is out of date: go generate ./roce/queue", name)
	}
}

// TestCheck: a table that cannot be a layout is refused.
func TestCheck(t *testing.T) {
	require.NoError(t, check(table))
	for name, fields := range map[string][]field{
		"not a number": {{size: 3}},
		"not aligned":  {{offset: 4, size: 8}},
		"overlapping":  {{offset: 0, size: 8}, {offset: 4, size: 4}},
		"an array":     {{offset: 0, size: 2, count: 3}, {offset: 4, size: 4}},
		"too long":     {{offset: 16, size: 8}},
	} {
		require.Error(t, check([]record{{size: 16, fields: fields}}), name)
		require.NoError(t, check([]record{{size: 16, fields: slices.Clone(table[3].fields)}}))
	}
}
