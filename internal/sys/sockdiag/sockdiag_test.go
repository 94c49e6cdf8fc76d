// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
)

// message returns a netlink message as the kernel writes it.
func message(kind uint16, body []byte) []byte {
	b := make([]byte, headerLen, headerLen+len(body)+align)
	binary.NativeEndian.PutUint32(b, uint32(headerLen+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	b = append(b, body...)
	for len(b)%align != 0 {
		b = append(b, 0)
	}
	return b
}

func answer(family byte, s Socket) []byte {
	b := make([]byte, messageLen)
	b[0], b[statePlace], b[retriesPlace] = family, byte(s.State), s.Retries
	binary.BigEndian.PutUint16(b[sourcePortPlace:], s.Local.Port())
	binary.BigEndian.PutUint16(b[destPortPlace:], s.Remote.Port())
	copy(b[sourcePlace:], s.Local.Addr().AsSlice())
	copy(b[destPlace:], s.Remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(b[uidPlace:], s.UID)
	binary.NativeEndian.PutUint32(b[inodePlace:], s.Inode)
	binary.NativeEndian.PutUint32(b[backlogPlace:], s.Backlog)
	return b
}

var done = message(typeDone, make([]byte, 4))

func TestParse(t *testing.T) {
	t.Parallel()
	four := Socket{
		State: SynSent, Local: netip.MustParseAddrPort("127.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.1:29500"),
		Inode: 4711, UID: 1001, Retries: 3,
	}
	six := Socket{
		State: Listen, Local: netip.MustParseAddrPort("[::1]:29500"), Remote: netip.MustParseAddrPort("[::]:0"),
		Inode: 12, Backlog: 128,
	}
	mapped := six
	mapped.Local = netip.MustParseAddrPort("[::ffff:10.0.0.2]:29500")
	var got []Socket
	datagram := slices.Concat(message(getSockets, append(answer(familyIPv4, four), 1, 2, 3)),
		message(getSockets, answer(familyIPv6, six)), message(getSockets, answer(familyIPv6, mapped)))
	last, err := parse(datagram, func(s Socket) { got = append(got, s) })
	mapped.Local = netip.MustParseAddrPort("10.0.0.2:29500")
	if last || err != nil || !slices.Equal(got, []Socket{four, six, mapped}) {
		t.Errorf("%+v, %v, %v", got, last, err)
	}
	if last, err := parse(done, func(Socket) { t.Error("a socket") }); !last || err != nil {
		t.Errorf("the end: %v, %v", last, err)
	}
}

// TestRefused: the kernel's error is passed on, and what is not an answer is an error.
func TestRefused(t *testing.T) {
	t.Parallel()
	refused := make([]byte, 4+headerLen)
	code := -int32(syscall.ENOENT)
	binary.NativeEndian.PutUint32(refused, uint32(code))
	if last, err := parse(message(typeError, refused), nil); !last || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v, %v", last, err)
	}
	for name, datagram := range map[string][]byte{
		"a short header": done[:10], "a length beyond the end": done[:headerLen], "a short socket": message(getSockets, make([]byte, 8)),
		"an unknown family": message(getSockets, make([]byte, messageLen)), "an error without a code": message(typeError, nil),
	} {
		if _, err := parse(datagram, func(Socket) {}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// FuzzParse: whatever an answer holds, it is read without a panic, and each socket has an address.
func FuzzParse(f *testing.F) {
	s := Socket{State: Established, Local: netip.MustParseAddrPort("[::1]:1"), Remote: netip.MustParseAddrPort("[::1]:2")}
	f.Add(slices.Concat(message(getSockets, answer(familyIPv6, s)), done))
	f.Add(message(typeError, []byte{0xfe, 0xff, 0xff, 0xff}))
	f.Add(done[:headerLen])
	f.Fuzz(func(t *testing.T, datagram []byte) {
		_, _ = parse(datagram, func(s Socket) {
			if !s.Local.Addr().IsValid() {
				t.Errorf("no address: %+v", s)
			}
		})
	})
}
