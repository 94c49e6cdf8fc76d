// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/tensor"
)

// fed is a connection that brings what it was given, and then ends.
type fed struct {
	net.Conn
	left []byte
}

func (f *fed) Read(b []byte) (int, error) {
	if len(f.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, f.left)
	f.left = f.left[n:]
	return n, nil
}

func (*fed) Write(b []byte) (int, error)      { return len(b), nil }
func (*fed) Close() error                     { return nil }
func (*fed) SetDeadline(time.Time) error      { return nil }
func (*fed) SetReadDeadline(time.Time) error  { return nil }
func (*fed) SetWriteDeadline(time.Time) error { return nil }
func (*fed) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (*fed) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// fedPipe is a pipe whose connections bring these bytes. It returns what it received, and the most that it allocated at once.
func fedPipe(t *testing.T, client bool, main, channelBytes []byte) (received int, largest int, err error) {
	t.Helper()
	ep, err := New("a", WithAlloc(func(n int) (*tensor.Storage, error) {
		largest = max(largest, n)
		return tensor.NewStorage(min(n, 1<<20))
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ep.Close() }()
	lane := newStream(&fed{left: channelBytes}, time.Second)
	p := newPipe(ep, "b", client, newStream(&fed{left: main}, time.Second), nil, channel{control: lane, lanes: []*stream{lane}})
	defer func() { _ = p.Close() }()
	for {
		m, err := p.Recv(t.Context())
		if err != nil {
			return received, largest, err
		}
		received++
		m.Release()
	}
}

// wireOf is a message as it stands on the connection of a pipe.
func wireOf(m *Message, change func(*descriptor)) []byte {
	var d descriptor
	for _, b := range m.Payloads {
		d.Payloads = append(d.Payloads, uint64(len(b)))
	}
	for _, s := range m.Storages {
		d.Storages = append(d.Storages, storageDescriptor{Length: uint64(s.Len()), Source: cpu, Target: cpu})
	}
	if change != nil {
		change(&d)
	}
	out := appendFrame(nil, d.Append(nil))
	for _, b := range m.Payloads {
		out = appendFrame(out, b)
	}
	return out
}

// TestHostileMessages sends every type of message in both directions, twice under one id, and with every way in which the
// announcement and what follows can disagree: a pipe delivers what is right and ends at what is wrong.
func TestHostileMessages(t *testing.T) {
	for kind := range uint32(0x400) {
		for _, client := range []bool{false, true} {
			once := wireOf(rpcMessage(kind, 7, []byte("x")), nil)
			n, _, err := fedPipe(t, client, append(append([]byte{}, once...), once...), nil)
			request := kind&requestBit != 0
			if want := 1; client || !request {
				if n != 0 {
					t.Errorf("type %#x, client %v: %d messages were received", kind, client, n)
				}
			} else if n != want {
				t.Errorf("type %#x: %d messages were received, want %d", kind, n, want)
			}
			if err == nil || errors.Is(err, io.EOF) && n == 2 {
				t.Errorf("type %#x, client %v: ended with %v", kind, client, err)
			}
		}
	}
	with := func(change func(*descriptor)) []byte {
		return wireOf(rpcMessage(0x102, 1, []byte("payload"), make([]byte, 8)), change)
	}
	storage := append(binary.LittleEndian.AppendUint64(nil, 8), make([]byte, 8)...)
	for name, c := range map[string]struct {
		main, channel []byte
		want          int
	}{
		"right":              {with(nil), storage, 1},
		"no storage":         {with(nil), nil, 0},
		"half a storage":     {with(nil), storage[:12], 0},
		"a longer storage":   {with(nil), binary.LittleEndian.AppendUint64(nil, 9), 0},
		"a shorter storage":  {with(nil), append(binary.LittleEndian.AppendUint64(nil, 7), make([]byte, 8)...), 0},
		"a payload too many": {with(func(d *descriptor) { d.Payloads = append(d.Payloads, 0) }), storage, 0},
		"a longer payload":   {with(func(d *descriptor) { d.Payloads[2]++ }), storage, 0},
		"an endless payload": {with(func(d *descriptor) { d.Payloads[2] = 1 << 62 }), storage, 0},
		"an endless storage": {with(func(d *descriptor) { d.Storages[0].Length = 1 << 62 }), storage, 0},
		"sizes whose sum wraps": {with(func(d *descriptor) {
			d.Storages = append(d.Storages, storageDescriptor{Length: 1<<64 - 4, Source: cpu, Target: cpu})
		}), storage, 0},
		"a storage of a device":     {with(func(d *descriptor) { d.Storages[0].Source = device{"cuda", 0} }), storage, 0},
		"a descriptor cut short":    {with(nil)[:10], storage, 0},
		"an endless descriptor":     {binary.LittleEndian.AppendUint64(nil, 1<<63), nil, 0},
		"bytes behind a descriptor": {appendFrame(nil, append(descriptor{}.Append(nil), 0)), nil, 0},
		"a packet":                  {appendFrame(nil, packetFrame{Name: "x"}.Append(nil)), nil, 0},
		"http":                      {[]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), nil, 0},
	} {
		n, largest, err := fedPipe(t, false, c.main, c.channel)
		if n != c.want || err == nil || largest > 64<<20 {
			t.Errorf("%s: %d messages, %d bytes allocated, %v", name, n, largest, err)
		}
	}
}

// FuzzPipe gives a pipe any bytes on both of its connections.
func FuzzPipe(f *testing.F) {
	f.Add(false, wireOf(rpcMessage(0x102, 1, []byte("payload"), make([]byte, 8)), nil),
		append(binary.LittleEndian.AppendUint64(nil, 8), make([]byte, 8)...))
	f.Add(true, wireOf(rpcMessage(0x203, 1, nil), nil), []byte{})
	f.Fuzz(func(t *testing.T, client bool, main, channel []byte) {
		n, largest, err := fedPipe(t, client, main, channel)
		if err == nil || client && n > 0 || largest > 64<<20 {
			t.Fatalf("%d messages, %d bytes allocated, %v", n, largest, err)
		}
	})
}

// FuzzHandshake gives both machines of the handshake any bytes: what they agree to is something that was offered.
func FuzzHandshake(f *testing.F) {
	for _, offer := range []offerer{
		{Name: "a", Channels: []string{ChannelBasic}},
		{Name: "a", Channels: []string{ChannelMPT}, Cohort: &cohortAd{Incarnation: 5, Insist: true}},
	} {
		_, brochure := offer.Hello()
		answer, _, err := chooser{
			Channels: []string{ChannelBasic, ChannelMPT}, Cohort: true, Address: "x",
			Register: func() uint64 { return 1 },
		}.Choose(brochure)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(brochure)
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		choice := chooser{Channels: []string{ChannelBasic, ChannelMPT}, Cohort: true, Address: "x", Register: func() uint64 { return 1 }}
		answer, plan, err := choice.Choose(data)
		if err == nil {
			offer := offerer{Channels: choice.Channels, Cohort: &cohortAd{}}
			if again, readErr := offer.Answered(answer); readErr != nil || again.Cohort != plan.Cohort || again.Channel != plan.Channel {
				t.Fatalf("our own answer is not understood: %+v, %v", again, readErr)
			}
		}
		if plan, err := (offerer{Channels: []string{ChannelBasic}}).Answered(data); err == nil &&
			(plan.Cohort || plan.Channel != ChannelBasic) {
			t.Fatalf("a plan that was not offered: %+v", plan)
		}
	})
}
