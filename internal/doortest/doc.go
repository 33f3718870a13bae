// Package doortest holds the tests of the engine's port with clients that share memory with it: a program in C in a
// process of its own, and clients that write nonsense.
package doortest
