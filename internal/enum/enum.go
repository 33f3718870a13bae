// Package enum gives named numbers their text in both directions, so that logs and JSON show names.
package enum

import (
	"fmt"
	"strings"
)

// Number is an enumeration, or a set of flags, that knows its text.
type Number interface {
	~uint8 | ~uint32
	fmt.Stringer
}

// Parse sets into to the value whose String is text. A value without a name has a text, too, and comes back.
func Parse[T Number](into *T, text []byte) error {
	const most = 1 << 8 // what an enumeration has at most
	for v := range most {
		if T(v).String() == string(text) {
			*into = T(v)
			return nil
		}
	}
	return unknown[T](text)
}

// ParseFlags is Parse for a set whose String is made by Flags.
func ParseFlags[T Number](into *T, text []byte) error {
	var set T
	for name := range strings.SplitSeq(string(text), separator) {
		flag, found := flagOf[T](name)
		if !found {
			return unknown[T](text)
		}
		set |= flag
	}
	*into = set
	return nil
}

func flagOf[T Number](name string) (T, bool) {
	if name == T(0).String() {
		return 0, true
	}
	for bit := T(1); bit != 0; bit <<= 1 {
		if bit.String() == name {
			return bit, true
		}
	}
	return 0, false
}

func unknown[T Number](text []byte) error {
	var none T
	return fmt.Errorf("%q is no %T", text, none)
}

const separator = "|"

// Flag is a bit of a set with its name.
type Flag[T ~uint8 | ~uint32] struct {
	Bit  T
	Name string
}

// Flags returns the names of the bits of a set in the order of flags, such as "SIGNALED|INLINE"; a bit without a name
// as its number, and "0" for the empty set.
func Flags[T ~uint8 | ~uint32](set T, flags []Flag[T]) string {
	var names []string
	for _, f := range flags {
		if set&f.Bit != 0 {
			names = append(names, f.Name)
			set &^= f.Bit
		}
	}
	for bit := T(1); bit != 0; bit <<= 1 {
		if set&bit != 0 {
			names = append(names, fmt.Sprintf("%#x", uint32(bit)))
		}
	}
	if names == nil {
		return "0"
	}
	return strings.Join(names, separator)
}
