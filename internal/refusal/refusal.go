// Package refusal finds out what is known about why the kernel refused something: an error number alone does not say
// it. EPERM comes from a missing capability, from a user namespace, from a seccomp filter and from a security module;
// ENOSYS comes from a kernel without the system call and from a filter.
package refusal

import (
	"fmt"
	"strconv"
	"strings"
)

// Facts are what a process can find out about itself and its kernel. Look fills them in.
type Facts struct {
	Release string // of the kernel: "6.12.57"; empty if unknown
	// Nested says that the process is in another user namespace than the initial one, Foreign that the network
	// namespace of the thread belongs to a user namespace that is not the process's own.
	Nested, Foreign bool
	Seccomp         bool              // a seccomp filter is on the thread
	Modules         string            // the active security modules, with commas; empty if unknown
	Config          map[string]string // the kernel's configuration: "CONFIG_BPF_SYSCALL": "y"; nil if it cannot be read
}

// Initial says who may stand in the way of something that wants its capabilities in the initial user namespace, such as
// bpf(2), where the process holds them. what names it: "bpf(2)".
func (f *Facts) Initial(what string) string {
	if f.Nested {
		return fmt.Sprintf("the capabilities are there, but only in the user namespace of this process, and %s wants them in the initial one", what)
	}
	return f.refused(what)
}

// Network says who may stand in the way of something that wants its capabilities in the user namespace that owns the
// network namespace, such as socket(2), where the process holds them in its own one.
func (f *Facts) Network(what string) string {
	if f.Foreign {
		return fmt.Sprintf("the capabilities are there, but not in the user namespace that owns the network namespace, where %s wants them", what)
	}
	return f.refused(what)
}

func (f *Facts) refused(what string) string {
	if f.Seccomp {
		return fmt.Sprintf("the capabilities are there; the seccomp filter of this process may refuse %s (a container's profile has to allow it)", what)
	}
	modules := "which ones are active cannot be read"
	if f.Modules != "" {
		modules = "active are " + f.Modules
	}
	return fmt.Sprintf("the capabilities are there and no seccomp filter is; a security module may refuse %s (%s)", what,
		modules)
}

// Absent says why something may be unknown to the kernel that an option of its configuration brings. what names it as
// in Initial.
func (f *Facts) Absent(what, option string) string {
	kernel := "this kernel"
	if f.Release != "" {
		kernel += " (" + f.Release + ")"
	}
	value, set := f.Config[option]
	switch {
	case f.Config != nil && !set:
		return fmt.Sprintf("%s is built without %s", kernel, option)
	case set && f.Seccomp:
		return fmt.Sprintf("%s is built with %s=%s; the seccomp filter of this process may refuse %s (a container's profile has to allow it)",
			kernel, option, value, what)
	case set:
		return fmt.Sprintf("%s is built with %s=%s and no seccomp filter is on this process, so the cause is not known",
			kernel, option, value)
	case f.Seccomp:
		return fmt.Sprintf("the seccomp filter of this process may refuse %s, or %s is built without %s (its configuration cannot be read)",
			what, kernel, option)
	}
	return fmt.Sprintf("%s may be built without %s (its configuration cannot be read)", kernel, option)
}

// Older says whether a kernel release is older than since, such as "Linux 5.18". What cannot be compared is taken for
// older: the text then names the version that is needed, which is true of any kernel.
func Older(release, since string) bool {
	have, ok := version(release)
	need, known := version(strings.TrimPrefix(since, "Linux "))
	return !ok || !known || have[0] < need[0] || have[0] == need[0] && have[1] < need[1]
}

// version takes the first two numbers of a release: "6.12.57+deb13-amd64" is 6 and 12.
func version(release string) (numbers [2]int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return numbers, false
	}
	for i := range numbers {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return numbers, false
		}
		numbers[i] = n
	}
	return numbers, true
}
