//go:build linux

package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// end is one of the two processes that obey commands.
type end struct {
	name    string // "xroce" or "rxe"; the second one of two of a kind has another name
	device  string
	address map[int]string // by family
	start   func() *exec.Cmd
	copy    string
	// Asked for and got by xroce only, see ladder.go.
	mode, multiBuffer string
	obtained          obtained

	cmd     *exec.Cmd
	input   io.WriteCloser
	answers chan answer
	log     *os.File
	killed  bool
	dead    bool // it did not obey in time: what it answers later is of a command that nobody waits for any more
}

// errDead says that an end is gone, or does not answer any more.
var errDead = errors.New("does not answer")

// endError is what an end said went wrong.
type endError struct {
	end, verb, text string
	refused         bool
}

func (e *endError) Error() string { return fmt.Sprintf("%s: %s: %s", e.end, e.verb, e.text) }

// open starts the process and has it open its device.
func (e *end) open(logs string) (information string, err error) {
	if e.log, err = os.OpenFile(logs+"/"+e.name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return "", err
	}
	e.cmd, e.killed, e.dead = e.start(), false, false
	e.cmd.Stderr = e.log
	if e.input, err = e.cmd.StdinPipe(); err != nil {
		return "", err
	}
	output, err := e.cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := e.cmd.Start(); err != nil {
		return "", err
	}
	answers := make(chan answer)
	e.answers = answers
	go func() {
		defer close(answers)
		for d := json.NewDecoder(bufio.NewReader(output)); ; {
			var a answer
			if d.Decode(&a) != nil {
				return
			}
			answers <- a
		}
	}()
	a, err := e.do(command{Do: "open", Device: e.device, Copy: e.copy, Mode: e.mode, MultiBuffer: e.multiBuffer})
	e.obtained = a.Obtained
	return a.Information, err
}

// do has the end obey a command.
func (e *end) do(c command) (a answer, err error) {
	if e.dead {
		return a, fmt.Errorf("%s: %s: %w since an earlier command", e.name, c.Do, errDead)
	}
	if err := json.NewEncoder(e.input).Encode(c); err != nil {
		return a, fmt.Errorf("%s: %s: %w: %w", e.name, c.Do, errDead, err)
	}
	select {
	case answer, there := <-e.answers:
		if !there {
			return a, fmt.Errorf("%s: %s: %w", e.name, c.Do, errDead)
		}
		a = answer
	case <-time.After(time.Duration((30 + c.Seconds) * float64(time.Second))):
		e.dead = true
		return a, fmt.Errorf("%s: %s: %w in time", e.name, c.Do, errDead)
	}
	if a.Error != "" {
		return a, &endError{e.name, c.Do, a.Error, a.Refused}
	}
	return a, nil
}

// kill ends the process as a crash would.
func (e *end) kill() {
	e.killed = true
	_ = e.cmd.Process.Kill()
	for range e.answers {
	}
	_ = e.cmd.Wait()
	_ = e.log.Close()
}

// close lets the process end, and says whether it did so without complaint.
func (e *end) close() error {
	_ = e.input.Close()
	done := make(chan error, 1)
	go func() {
		for range e.answers {
		}
		done <- e.cmd.Wait()
	}()
	defer e.log.Close()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s ended with %w, see its log", e.name, err)
		}
		return nil
	case <-time.After(20 * time.Second):
		_ = e.cmd.Process.Kill()
		return fmt.Errorf("%s does not end", e.name)
	}
}
