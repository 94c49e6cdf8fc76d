// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"math"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/nop"
)

// Bounds of the handshake and of descriptors. A default PyTorch brochure is 293 bytes.
const (
	maxHandshake  = 64 << 10 // bytes of a hello, brochure or answer
	maxName       = 1 << 10
	maxDescriptor = 16 << 20
	maxPayloads   = 16
	maxStorages   = 64 << 10
	maxEntries    = 64 // transports, channels, devices
)

// packetFrame is the first frame of every connection.
type packetFrame struct {
	// Requested is set on a connection that an answer asked for; ID then says which. Else it opens a pipe and Name is
	// the context name of the side that dials: its worker name.
	Requested bool
	Name      string
	ID        uint64
}

// Append appends the encoded packet.
func (p packetFrame) Append(b []byte) []byte {
	if p.Requested {
		return nop.AppendUint(nop.AppendStruct(nop.AppendVariant(b, 1), 1), p.ID)
	}
	return nop.AppendString(nop.AppendStruct(nop.AppendVariant(b, 0), 1), p.Name)
}

// parsePacket decodes the first frame of a connection.
func parsePacket(data []byte) (packetFrame, error) {
	r := nop.NewReader(data)
	p := packetFrame{Requested: r.Variant(2) == 1}
	r.Struct(1)
	if p.Requested {
		p.ID = r.Uint(64)
	} else {
		p.Name = r.String(maxName)
	}
	return p, r.Close()
}

// device is where a tensor lives. RPC without CUDA knows only the CPU.
type device struct {
	Type  string
	Index int
}

// cpu is the one device of a Go worker.
var cpu = device{Type: "cpu"}

func (d device) append(b []byte) []byte {
	return nop.AppendInt(nop.AppendString(nop.AppendStruct(b, 2), d.Type), int64(d.Index))
}

func parseDevice(r *nop.Reader) device {
	r.Struct(2)
	return device{Type: r.String(maxName), Index: int(r.Int(32))}
}

// named is a transport and its domain descriptor: two sides can use it when their descriptors are equal.
type transportAd struct{ Name, Domain string }

// channelAd is a channel with the descriptor of each device it serves.
type channelAd struct {
	Name    string
	Devices []deviceDescriptor
}

// deviceDescriptor is the descriptor of a channel for one device.
type deviceDescriptor struct {
	Device     device
	Descriptor string
}

// brochureFrame is what the dialling side can do.
type brochureFrame struct {
	Transports []transportAd
	Channels   []channelAd
}

// Append appends the encoded brochure.
func (br brochureFrame) Append(b []byte) []byte {
	b = nop.AppendStruct(b, 2)
	b = nop.AppendMap(b, len(br.Transports))
	for _, t := range br.Transports {
		b = nop.AppendString(nop.AppendString(b, t.Name), t.Domain)
	}
	return appendChannels(b, br.Channels)
}

func appendChannels(b []byte, channels []channelAd) []byte {
	b = nop.AppendMap(b, len(channels))
	for _, c := range channels {
		b = nop.AppendString(b, c.Name)
		b = nop.AppendMap(b, len(c.Devices))
		for _, d := range c.Devices {
			b = nop.AppendString(d.Device.append(b), d.Descriptor)
		}
	}
	return b
}

// parseBrochure decodes a brochure.
func parseBrochure(data []byte) (brochureFrame, error) {
	r := nop.NewReader(data)
	r.Struct(2)
	var br brochureFrame
	for range r.Map(maxEntries) {
		br.Transports = append(br.Transports, transportAd{Name: r.String(maxName), Domain: r.String(maxName)})
	}
	br.Channels = parseChannels(r)
	return br, r.Close()
}

func parseChannels(r *nop.Reader) []channelAd {
	var channels []channelAd
	for range r.Map(maxEntries) {
		c := channelAd{Name: r.String(maxName)}
		for range r.Map(maxEntries) {
			c.Devices = append(c.Devices, deviceDescriptor{Device: parseDevice(r), Descriptor: r.String(maxName)})
		}
		channels = append(channels, c)
	}
	return channels
}

// The connections of a pipe that an answer may ask for.
const (
	connDescriptor      uint64 = 0 // present only when the pipe moves to another transport
	connDescriptorReply uint64 = 1
)

// registration asks for a connection: what it is for, and the id it must announce.
type registration struct{ Conn, ID uint64 }

// channelRegistration asks for the connections of a channel.
type channelRegistration struct {
	Name string
	IDs  []uint64
}

// selection names the channel for tensors between two devices.
type selection struct {
	Server, Client device
	Channel        string
}

// answerFrame is what the listening side picked from a brochure.
type answerFrame struct {
	Transport, Address string
	Registrations      []registration
	Domain             string
	ChannelIDs         []channelRegistration
	Channels           []channelAd
	Selections         []selection
}

// Append appends the encoded answer.
func (a answerFrame) Append(b []byte) []byte {
	b = nop.AppendStruct(b, 7)
	b = nop.AppendString(nop.AppendString(b, a.Transport), a.Address)
	b = nop.AppendMap(b, len(a.Registrations))
	for _, reg := range a.Registrations {
		b = nop.AppendUint(nop.AppendUint(b, reg.Conn), reg.ID)
	}
	b = nop.AppendString(b, a.Domain)
	b = nop.AppendMap(b, len(a.ChannelIDs))
	for _, c := range a.ChannelIDs {
		b = nop.AppendUint64s(nop.AppendString(b, c.Name), c.IDs)
	}
	b = appendChannels(b, a.Channels)
	b = nop.AppendMap(b, len(a.Selections))
	for _, s := range a.Selections {
		b = s.Client.append(s.Server.append(nop.AppendArray(b, 2)))
		b = nop.AppendString(b, s.Channel)
	}
	return b
}

// parseAnswer decodes an answer.
func parseAnswer(data []byte) (answerFrame, error) {
	r := nop.NewReader(data)
	r.Struct(7)
	a := answerFrame{Transport: r.String(maxName), Address: r.String(maxName)}
	for range r.Map(maxEntries) {
		a.Registrations = append(a.Registrations, registration{Conn: r.Uint(64), ID: r.Uint(64)})
	}
	a.Domain = r.String(maxName)
	for range r.Map(maxEntries) {
		a.ChannelIDs = append(a.ChannelIDs, channelRegistration{Name: r.String(maxName), IDs: r.Uint64s(maxEntries)})
	}
	a.Channels = parseChannels(r)
	for range r.Map(maxEntries) {
		if n := r.Array(2); r.Err() == nil && n != 2 {
			r.Fail("a pair of %d devices", n)
		}
		a.Selections = append(a.Selections, selection{Server: parseDevice(r), Client: parseDevice(r), Channel: r.String(maxName)})
	}
	return a, r.Close()
}

// storageDescriptor announces one storage of a message.
type storageDescriptor struct {
	Length uint64
	Source device
	// Target is the device at the receiver; PyTorch always names it.
	Target   device
	NoTarget bool
}

// descriptor announces a message: the lengths of its payloads and storages.
type descriptor struct {
	Payloads []uint64
	Storages []storageDescriptor
}

// Append appends the encoded descriptor.
func (d descriptor) Append(b []byte) []byte {
	b = nop.AppendString(nop.AppendStruct(b, 3), "")
	b = nop.AppendArray(b, len(d.Payloads))
	for _, n := range d.Payloads {
		b = nop.AppendString(nop.AppendUint(nop.AppendStruct(b, 2), n), "")
	}
	b = nop.AppendArray(b, len(d.Storages))
	for _, s := range d.Storages {
		b = s.Source.append(nop.AppendUint(nop.AppendStruct(b, 4), s.Length))
		if s.NoTarget {
			b = nop.AppendEmpty(b)
		} else {
			b = s.Target.append(b)
		}
		b = nop.AppendString(b, "")
	}
	return b
}

// parseDescriptor decodes a descriptor.
func parseDescriptor(data []byte) (descriptor, error) {
	r := nop.NewReader(data)
	r.Struct(3)
	_ = r.String(maxName)
	var d descriptor
	if n := r.Array(maxPayloads); n > 0 {
		d.Payloads = make([]uint64, 0, n)
		for range n {
			r.Struct(2)
			d.Payloads = append(d.Payloads, r.Uint(64))
			_ = r.String(maxName)
		}
	}
	if n := r.Array(maxStorages); n > 0 {
		d.Storages = make([]storageDescriptor, 0, min(n, 1024))
		for range n {
			if r.Err() != nil {
				break
			}
			r.Struct(4)
			s := storageDescriptor{Length: r.Uint(64), Source: parseDevice(r)}
			if r.Empty() {
				s.NoTarget = true
			} else {
				s.Target = parseDevice(r)
			}
			_ = r.String(maxName)
			d.Storages = append(d.Storages, s)
		}
	}
	return d, r.Close()
}

// check bounds what a descriptor asks us to receive, before any memory is taken.
func (d descriptor) check(limits peerLimits) error {
	total := uint64(0)
	for _, n := range d.Payloads {
		if n > uint64(limits.Payload) { //nolint:gosec // positive by construction
			return cohort.Newf("tensorpipe: receive", cohort.TooLarge, "a payload of %d bytes, the limit is %d", n, limits.Payload)
		}
		total += n
	}
	for _, s := range d.Storages {
		if s.Length > uint64(limits.Message) { //nolint:gosec // positive by construction
			return cohort.Newf("tensorpipe: receive", cohort.TooLarge, "a tensor storage of %d bytes, the limit is %d", s.Length,
				limits.Message)
		}
		if s.Source.Type != "cpu" || !s.NoTarget && s.Target.Type != "cpu" {
			return cohort.Newf("tensorpipe: receive", cohort.NotSupported, "a tensor for device %q: a Go worker has only the CPU",
				s.Target.Type)
		}
		total += s.Length
	}
	if total > uint64(limits.Message) || total > math.MaxInt { //nolint:gosec // positive by construction
		return cohort.Newf("tensorpipe: receive", cohort.TooLarge, "a message of %d bytes, the limit is %d", total, limits.Message)
	}
	return nil
}

// laneAddress is one lane of an mpt channel: where to dial and the id to announce there.
type laneAddress struct {
	Address string
	ID      uint64
}

// appendLanes appends the hello of an mpt channel's listening end.
func appendLanes(b []byte, lanes []laneAddress) []byte {
	b = nop.AppendArray(nop.AppendStruct(nop.AppendVariant(b, 0), 1), len(lanes))
	for _, l := range lanes {
		b = nop.AppendUint(nop.AppendString(nop.AppendStruct(b, 2), l.Address), l.ID)
	}
	return b
}

// parseLanes decodes the hello of an mpt channel's listening end.
func parseLanes(data []byte) ([]laneAddress, error) {
	r := nop.NewReader(data)
	if r.Variant(2) != 0 {
		r.Fail("the hello of a dialling end where that of a listening end is expected")
	}
	r.Struct(1)
	var lanes []laneAddress
	for range r.Array(maxEntries) {
		r.Struct(2)
		lanes = append(lanes, laneAddress{Address: r.String(maxName), ID: r.Uint(64)})
	}
	return lanes, r.Close()
}
