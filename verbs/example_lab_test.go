package verbs_test

import (
	"log"
	"testing"

	"github.com/xroce/xroce/verbs"
	"github.com/xroce/xroce/verbs/verbstest"
)

// exampleTest stands for the test that an example is not.
type exampleTest struct{ testing.TB }

func (exampleTest) Helper()                           {}
func (exampleTest) Cleanup(func())                    {}
func (exampleTest) Failed() bool                      { return false }
func (exampleTest) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (exampleTest) Errorf(format string, args ...any) { log.Fatalf(format, args...) }

// newNetwork makes a network in memory. Tests have it from verbstest.New(t).
func newNetwork() *verbstest.Network { return verbstest.New(exampleTest{}, verbstest.Seed(1)) }

// twoParties are connected, with the same options.
func twoParties(o verbs.ConnectOptions) (alice, bob *party, network *verbstest.Network) {
	network = newNetwork()
	alice, bob = newParty(network.Device("alice")), newParty(network.Device("bob"))
	network.Connect(alice.qp, bob.qp, o)
	return alice, bob, network
}
