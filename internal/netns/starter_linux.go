package netns

import "os/exec"

// starter is an OS thread inside a namespace that starts processes. The kernel sends a child its parent death
// signal when the thread that made it ends, not the process (prctl(2), PR_SET_PDEATHSIG), so that thread has to
// live as long as its children should, and may be no thread of the scheduler's, which ends threads at will.
type starter struct {
	commands chan *exec.Cmd
	results  chan error
	ended    chan struct{}
}

func newStarter(enter func() error) (*starter, error) {
	s := &starter{
		commands: make(chan *exec.Cmd),
		results:  make(chan error),
		ended:    make(chan struct{}),
	}
	locked(func() {
		defer close(s.ended)
		err := enter()
		s.results <- err
		if err != nil {
			return
		}
		for cmd := range s.commands {
			s.results <- cmd.Start()
		}
	})
	if err := <-s.results; err != nil {
		return nil, err
	}
	return s, nil
}

// start may be called by one goroutine at a time.
func (s *starter) start(cmd *exec.Cmd) error {
	s.commands <- cmd
	return <-s.results
}

// stop ends the thread, and with it the children.
func (s *starter) stop() {
	close(s.commands)
	<-s.ended
}
