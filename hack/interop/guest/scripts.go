//go:build linux

package guest

import _ "embed"

// The scripts that the guest needs beside the program.
var (
	//go:embed peer.py
	PeerScript []byte

	//go:embed setup.sh
	SetupScript []byte
)
