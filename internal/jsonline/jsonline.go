// Package jsonline passes values between two programs, a line of JSON each.
package jsonline

import (
	"encoding/json"
	"fmt"
	"io"
)

// maxLine bounds what a peer can make Read keep.
const maxLine = 4096

// Write sends a value.
func Write(channel io.Writer, value any) error { return json.NewEncoder(channel).Encode(value) }

// Read receives a value. It reads byte by byte: whatever follows the line stays in the channel.
func Read(channel io.Reader, into any) error { return read(channel, into, maxLine) }

func read(channel io.Reader, into any, limit int) error {
	line := make([]byte, 0, 256)
	for one := make([]byte, 1); len(line) < limit; {
		if _, err := io.ReadFull(channel, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			return json.Unmarshal(line, into)
		}
		line = append(line, one[0])
	}
	return fmt.Errorf("message is longer than %d bytes", limit)
}

// Exchange sends a value and receives the peer's, both at once, in lines of at most limit bytes. A value that does
// not fit is not sent. After an error the channel must be closed.
func Exchange(channel io.ReadWriter, local, remote any, limit int) error {
	line, err := json.Marshal(local)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if len(line) > limit {
		return fmt.Errorf("own message of %d bytes is longer than %d bytes", len(line), limit)
	}
	written := make(chan error, 1)
	go func() {
		_, err := channel.Write(line)
		written <- err
	}()
	if err := read(channel, remote, limit); err != nil {
		return err
	}
	return <-written
}
