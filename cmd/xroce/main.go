// Command xroce shows and uses RoCEv2 over AF_XDP: a demonstration on one machine, a list of the network devices
// that can serve, a ping-pong test between two machines, and what the processes that serve devices do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/xroce/xroce/verbs"
)

// commandLine is the grammar of the command line.
type commandLine struct {
	Demo     demoCommand     `cmd:"" help:"Move a file between two processes in two network namespaces, and measure. Needs root."`
	Devices  devicesCommand  `cmd:"" help:"List the network devices: which can serve, and how."`
	Features featuresCommand `cmd:"" help:"List what this machine's kernel has of what is needed."`
	Pingpong pingpongCommand `cmd:"" help:"Measure the round trip between two machines, like ibv_rc_pingpong."`
	Perf     perfCommand     `cmd:"" help:"Measure bandwidth and latency between two machines, like perftest."`
	Stat     statCommand     `cmd:"" help:"Show what the processes of this machine that serve devices do."`
	Capture  captureCommand  `cmd:"" help:"Write the packets of processes that serve devices for Wireshark, drops and resends marked."`
	Version  versionCommand  `cmd:"" help:"Print the version."`
	Help     helpCommand     `cmd:"" help:"Explain a command."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version."`

	DemoActive  demoActiveCommand  `cmd:"" hidden:""`
	DemoPassive demoPassiveCommand `cmd:"" hidden:""`
}

const description = `RoCEv2 (RDMA over UDP port 4791) in software, over AF_XDP.

Exit status: 0 success, 1 a run that failed, 2 wrong use or a machine that cannot do it, 128 + n after signal n; a complete capture ends with 0.`

// application is what the commands get from outside.
type application struct {
	ctx            context.Context // ends with a signal
	stdout, stderr io.Writer
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit status.
func run(arguments []string, stdout, stderr io.Writer) int {
	ctx, stop := untilSignal()
	defer stop()
	app := &application{ctx: ctx, stdout: stdout, stderr: stderr}
	err := app.execute(arguments)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // whatever else it led to
	}
	if err != nil && !errors.Is(err, errReported) {
		fmt.Fprintln(stderr, "xroce:", oneLine(err))
	}
	return exitStatus(err)
}

func (a *application) execute(arguments []string) error {
	var line commandLine
	parser, err := kong.New(&line,
		kong.Name("xroce"), kong.Description(description), kong.Vars{"version": version(), "netns_default": "that of this process"},
		kong.Writers(a.stdout, a.stderr), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(arguments)
	if err != nil {
		return fmt.Errorf("%w: %w (xroce --help)", errUsage, err)
	}
	return parsed.Run(a)
}

// versionCommand is the flag as a command.
type versionCommand struct{}

// Run prints the version.
func (*versionCommand) Run(app *application) error {
	_, err := fmt.Fprintln(app.stdout, version())
	return err
}

// helpCommand is the flag as a command.
type helpCommand struct {
	Command []string `arg:"" optional:"" help:"Command to explain (default: all, in short)."`
}

// Run prints the help of a command.
func (c *helpCommand) Run(app *application) error { return app.execute(append(c.Command, "--help")) }

// untilSignal returns a context that the first signal ends, with an interruption as its cause. The second one
// kills the process as usual.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(interruption{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(errors.New("finished")) }
}

// version names the module's version or, where it was built from a checkout, the commit.
func version() string {
	text := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		text = info.Main.Version
	}
	return fmt.Sprintf("xroce %s, %s %s/%s", text, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// modeFlag chooses where the XDP program runs.
type modeFlag struct {
	Mode string `enum:"auto,native,generic" default:"auto" help:"Where the XDP program runs: ${enum}."`
}

func (m modeFlag) mode() verbs.XDPMode {
	switch m.Mode {
	case "native":
		return verbs.XDPNative
	case "generic":
		return verbs.XDPGeneric
	}
	return verbs.XDPAuto
}
