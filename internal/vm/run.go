//go:build linux

package vm

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed guest/init.sh
var initScript []byte

// ErrLimit says that a run took longer than Options.Limit.
var ErrLimit = errors.New("time limit reached")

// Run boots a machine, runs the script in it and returns its exit status. An error says that there is none.
func Run(ctx context.Context, o Options) (status int, err error) {
	cache, err := Cache()
	if err != nil {
		return 0, err
	}
	kernel := cmp.Or(o.Kernel, "new")
	if err := Validate(kernel, o.NIC); err != nil {
		return 0, err
	}
	version, err := Prepare(ctx, kernel, o.Progress)
	if err != nil {
		return 0, err
	}
	job, remove, err := TempDir(ctx)
	if err != nil {
		return 0, err
	}
	defer remove()
	if err := fillJob(job, o); err != nil {
		return 0, err
	}
	initramfs, err := makeInitramfs(rootTree(cache), filepath.Join(cache, "kernels", version, "modules", version))
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(job, "initramfs"), initramfs, 0o644); err != nil {
		return 0, err
	}
	limited, end := context.WithCancelCause(ctx)
	defer end(nil)
	if o.Limit > 0 {
		var cancel func()
		limited, cancel = context.WithTimeoutCause(limited, o.Limit, ErrLimit)
		defer cancel()
	}
	output, input, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer output.Close()
	cmd := qemu(limited, cache, version, job, o)
	var trouble strings.Builder
	cmd.Stderr = &trouble
	cmd.ExtraFiles = []*os.File{input} // descriptor 3
	err = start(cmd)
	input.Close()
	if err != nil {
		return 0, fmt.Errorf("QEMU: %w", err)
	}
	_, copyErr := io.Copy(cmp.Or[io.Writer](o.Output, io.Discard), output)
	if copyErr != nil {
		// Nobody reads the pipe any more, and QEMU would wait for that.
		copyErr = fmt.Errorf("output of the script: %w", copyErr)
		end(copyErr)
	}
	err = cmd.Wait()
	console, _ := os.ReadFile(filepath.Join(job, "console"))
	if o.Console != nil {
		_, _ = o.Console.Write(console)
	}
	if o.Results != "" {
		if err := copyResults(filepath.Join(job, "share/results"), o.Results); err != nil {
			return 0, fmt.Errorf("results: %w", err)
		}
	}
	if text, readErr := os.ReadFile(filepath.Join(job, "share/status")); readErr == nil && copyErr == nil {
		return strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	return 0, fmt.Errorf("the machine with kernel %s ended without a status: %w", version,
		errors.Join(err, errorText(trouble.String()), errorText("the end of its console: "+tail(console, 30))))
}

// copyResults copies a folder into another one, over the files that it has already.
func copyResults(from, to string) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(to, name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}

func errorText(s string) error {
	if s = strings.TrimSpace(s); s != "" {
		return errors.New(s)
	}
	return nil
}

func tail(text []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// fillJob makes the folder that the guest sees as /job.
func fillJob(job string, o Options) error {
	share := filepath.Join(job, "share")
	for _, d := range []string{"host", "results"} {
		if err := os.MkdirAll(filepath.Join(share, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(share, "init"), initScript, 0o755); err != nil {
		return err
	}
	var arguments strings.Builder
	for _, a := range o.Args {
		fmt.Fprintf(&arguments, " '%s'", strings.ReplaceAll(a, "'", `'\''`))
	}
	if err := os.WriteFile(filepath.Join(share, "environment"), []byte("ARGUMENTS=("+arguments.String()+" )\n"), 0o644); err != nil {
		return err
	}
	if err := copyFile(o.Script, filepath.Join(share, "script")); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	for _, f := range o.Files {
		target := filepath.Join(share, "host", filepath.Base(f))
		info, err := os.Stat(f)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			err = os.CopyFS(target, os.DirFS(f))
		default:
			err = copyFile(f, target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// qemu is the command of a machine. Descriptor 3 takes the output of the script.
func qemu(ctx context.Context, cache, version, job string, o Options) *exec.Cmd {
	tools := toolsTree(cache)
	kernel := filepath.Join(cache, "kernels", version)
	folder := func(name, path, options string) []string {
		return []string{
			// QEMU takes two commas for one that separates nothing.
			"-fsdev", "local,id=" + name + ",security_model=none,path=" + strings.ReplaceAll(path, ",", ",,") + options,
			"-device", "virtio-9p-pci,fsdev=" + name + ",mount_tag=" + name,
		}
	}
	args := []string{
		"-L", filepath.Join(string(tools), "usr/share/qemu"), "-L", filepath.Join(string(tools), "usr/share/seabios"),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "q35,usb=off,vmport=off,hpet=off", "-smp", strconv.Itoa(cmp.Or(o.CPUs, 2)), "-m", cmp.Or(o.Memory, "2G"),
		"-kernel", filepath.Join(kernel, "vmlinuz"), "-initrd", filepath.Join(job, "initramfs"),
		// What costs time in an emulated machine and protects nothing there is off.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable random.trust_cpu=on audit=0 apparmor=0 " +
			"nowatchdog cryptomgr.notests no_timer_check net.ifnames=0 rcupdate.rcu_expedited=1 " + o.Append,
		"-serial", "file:" + filepath.Join(job, "console"),
		"-device", "virtio-serial-pci", "-chardev", "file,id=script,path=/dev/fd/3,append=on",
		"-device", "virtserialport,chardev=script,name=script",
		"-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random",
	}
	args = append(args, accelerator()...)
	args = append(args, folder("root", string(rootTree(cache)), ",readonly=on")...)
	args = append(args, folder("modules", filepath.Join(kernel, "modules"), ",readonly=on")...)
	args = append(args, folder("job", filepath.Join(job, "share"), "")...)
	args = append(args, nics(o.NIC)...)
	cmd := tools.command(ctx, "qemu-system-x86_64", args...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(string(tools), multiarch, "qemu"))
	return cmd
}

// accelerator is emulation: a KVM that is there may still fail, as nested ones do now and then. $XROCE_VM_ACCEL=kvm
// asks for it. Emulated, the CPU must not tell of fast string instructions (erms), since the kernel would then copy
// by "rep movsb", which is emulated byte by byte; and of none that are emulated at great length (smap, smep, pcid).
func accelerator() []string {
	if os.Getenv("XROCE_VM_ACCEL") == "kvm" {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi,tb-size=256", "-cpu",
		"Haswell-noTSX,-erms,-smap,-smep,-pcid,-invpcid,-tsc-deadline"}
}

// nics are two network devices that a hub joins. Each sits behind a root port of its own: igb has virtual functions,
// whose numbers collide with those of its neighbours on one bus.
func nics(model string) (args []string) {
	if model == "" {
		return nil
	}
	name, properties, _ := strings.Cut(model, ",")
	if name == "virtio" {
		// The platform's DMA API, without which the driver has no device that zero copy could map memory for.
		name = "virtio-net-pci,disable-legacy=on,iommu_platform=on"
	}
	if properties != "" {
		name += "," + properties
	}
	for i := range 2 {
		args = append(args,
			"-netdev", fmt.Sprintf("hubport,id=hub%d,hubid=1", i),
			"-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d", i, i+1),
			"-device", fmt.Sprintf("%s,netdev=hub%d,bus=port%d,mac=02:00:00:00:00:0%d", name, i, i, i+1))
	}
	return args
}
