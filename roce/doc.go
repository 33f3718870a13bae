// Package roce is the codec of RoCEv2: InfiniBand transport packets carried in UDP port 4791
// (IBTA annex A17). It knows headers, opcodes, packet sequence numbers, addresses and the ICRC, and
// nothing of queue pairs: it holds no state between packets, starts no goroutine, reads no clock and
// allocates nothing on the data path.
//
// Sending: a [HeaderTemplate], made once per path, writes Ethernet, IP and UDP into a frame; the
// Put methods of [BTHFields], [RETHFields] and their like write the transport headers; the caller
// copies payload and pad; [HeaderTemplate.Seal] writes the ICRC.
//
// Receiving: [Packet.Parse] checks a frame as far as that is possible without knowing a queue pair,
// and leaves views of the headers and of the payload in the frame.
//
// All multi-byte fields are big endian on the wire, except the ICRC, which is little endian.
// Values in this package are numbers in the order of the host.
package roce
