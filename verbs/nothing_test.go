package verbs_test

import (
	"context"
	"iter"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/verbs"
)

// TestEveryMethodOfNothing: every exported method of every object, called on nil and on a zero value, returns
// ErrInvalid or, if it has no error to return, panics with it. The arguments are zero values but for the context, so
// none of them is to blame before the object is.
func TestEveryMethodOfNothing(t *testing.T) {
	for _, object := range []reflect.Type{
		reflect.TypeFor[*verbs.Device](), reflect.TypeFor[*verbs.PD](), reflect.TypeFor[*verbs.CQ](),
		reflect.TypeFor[*verbs.CompChannel](), reflect.TypeFor[*verbs.QP](), reflect.TypeFor[*verbs.SRQ](),
		reflect.TypeFor[*verbs.MR](), reflect.TypeFor[*verbs.MW](), reflect.TypeFor[*verbs.Capture](),
	} {
		require.NotZero(t, object.NumMethod())
		for i := range object.NumMethod() {
			method := object.Method(i)
			for kind, value := range map[string]reflect.Value{
				"nil": reflect.Zero(object), "zero": reflect.New(object.Elem()),
			} {
				t.Run(object.Elem().Name()+"."+method.Name+" of "+kind, func(t *testing.T) {
					require.ErrorIs(t, outcome(t, method, value), verbs.ErrInvalid)
				})
			}
		}
	}
}

// outcome calls a method and returns its error, or what it panics with.
func outcome(t *testing.T, method reflect.Method, object reflect.Value) (err error) {
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			err, ok = p.(error)
			require.True(t, ok, "it panics with %v", p)
		}
	}()
	arguments := []reflect.Value{object}
	parameters := method.Type.NumIn()
	if method.Type.IsVariadic() {
		parameters--
	}
	for i := 1; i < parameters; i++ {
		argument := reflect.Zero(method.Type.In(i))
		if method.Type.In(i) == reflect.TypeFor[context.Context]() {
			argument = reflect.ValueOf(t.Context())
		}
		arguments = append(arguments, argument)
	}
	results := method.Func.Call(arguments)
	require.NotEmpty(t, results, "it returns nothing")
	switch last := results[len(results)-1].Interface().(type) {
	case error:
		return last
	case string: // QP.Explain
		require.Contains(t, last, verbs.ErrInvalid.Error())
		return verbs.ErrInvalid
	case iter.Seq2[verbs.WC, error]:
		for _, err = range last {
		}
		return err
	default:
		t.Fatalf("it returns %v", last)
		return nil
	}
}
