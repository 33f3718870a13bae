//go:build lockorder

package lockorder

// goroutine returns the address of the descriptor of the calling goroutine (runtime.g), which stays where it is as long
// as the goroutine lives; another one may get it afterwards. The number that runtime.Stack prints costs a walk of the
// stack.
func goroutine() uintptr
