package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
)

// The enum in C, as it stands in the BTF of both objects, and the names in Go
// are the same list.
func TestReasonNamesMatchBTF(t *testing.T) {
	for _, object := range []string{"xdp_roce_bpfel.o", "xdp_roce_bpfeb.o"} {
		spec, err := ebpf.LoadCollectionSpec(object)
		require.NoError(t, err)
		var enum *btf.Enum
		require.NoError(t, spec.Types.TypeByName("reason", &enum))
		require.Len(t, enum.Values, len(reasonNames)+1, "in %s", object)
		for i, value := range enum.Values[:len(reasonNames)] {
			require.EqualValues(t, i, value.Value)
			require.Equal(t, strings.ToLower(strings.TrimPrefix(value.Name, "REASON_")), Reason(i).String())
		}
		require.Equal(t, "REASON_COUNT", enum.Values[len(reasonNames)].Name)
		require.EqualValues(t, len(reasonNames), spec.Maps[roceMapCounters].MaxEntries)
	}
}

func TestReasons(t *testing.T) {
	require.Len(t, Reasons(), int(reasonCount))
	var onPort []string
	for i, reason := range Reasons() {
		require.EqualValues(t, i, reason)
		if reason.ReachesKernelOnRoCEPort() {
			onPort = append(onPort, reason.String())
		}
	}
	require.Equal(t, []string{"pass_ipv4_options", "pass_ipv4_fragment", "pass_short_bth", "pass_foreign_mac",
		"pass_foreign_address", "pass_foreign_multicast", "pass_foreign_qpn", "pass_no_socket"}, onPort)
	require.Equal(t, "reason(16)", reasonCount.String())
	require.False(t, reasonCount.ReachesKernelOnRoCEPort())
}

// The limits that Go checks are those of the maps.
func TestMapSizes(t *testing.T) {
	spec, err := loadRoce()
	require.NoError(t, err)
	require.EqualValues(t, 2*MaxAddresses, spec.Maps[roceMapAddresses].MaxEntries)
	require.EqualValues(t, MaxGroups, spec.Maps[roceMapGroups].MaxEntries)
}
