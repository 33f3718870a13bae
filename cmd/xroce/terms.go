package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/xroce/xroce/verbs"
)

// errStranger: what is at the other end of the TCP connection is not this program.
var errStranger = errors.New("not an")

// exchangeTerms sends what one end of a command tells first and returns what the other one tells, the server if that is
// what is asked. The terms name the program, by which strangers are told apart.
func exchangeTerms[T any, P interface {
	*T
	program() string
}](connection net.Conn, own P, server bool) (P, error) {
	var came bytes.Buffer
	channel := struct {
		io.Reader
		io.Writer
	}{io.TeeReader(connection, &came), connection}
	other, err := verbs.Exchange(channel, *own)
	if err == nil && P(&other).program() == own.program() {
		return &other, nil
	}
	role := "client"
	if server {
		role = "server"
	}
	const most = 60 // bytes that tell what it is
	what := "it sent nothing"
	if came.Len() > 0 {
		what = fmt.Sprintf("it sent %.*q", most, came.Bytes())
	}
	if err != nil {
		what += fmt.Sprintf(" (%v)", err)
	}
	return nil, fmt.Errorf("%v: %w %s %s: %s", connection.RemoteAddr(), errStranger, own.program(), role, what)
}
