// Package puppet is a scripted peer for tests: it sends hand-made packets to a live queue pair, right ones and wrong
// ones, and looks at each answer.
//
// A Puppet sits on a link of its own, so it works on a network in memory as well as on a pair of network devices; a
// Clock lets time pass between a packet and its answer. On a Stage the time is virtual: a timeout of an hour is exact
// and takes no time at all.
//
// A case reads like this:
//
//	stage := puppet.NewStage(t, mem.Options{})
//	end := stage.NewEnd(puppet.EndOptions{})
//	p := stage.NewPuppet()
//	p.Connect(end)
//	p.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(0, 4), Payload: []byte("rose"), AckRequest: true})
//	p.ExpectAck(100, 1)
//
// The puppet's own requests begin with PSN 100 and those of the queue pair with PSN 40, unless Connect is told
// otherwise. Everything here fails its test on the first surprise, and belongs to the goroutine of that test.
package puppet
