// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore

import (
	"encoding/binary"
	"maps"
	"slices"
)

// encodeMembers writes the members beside a snapshot, and those that were removed.
func encodeMembers(all map[uint64]Member, removed []uint64) []byte {
	b := []byte{envelopeFormat}
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		b = appendMember(b, all[id])
	}
	b = binary.AppendUvarint(b, uint64(len(removed)))
	for _, id := range removed {
		b = binary.LittleEndian.AppendUint64(b, id)
	}
	return b
}

func decodeMembers(b []byte) (all map[uint64]Member, removed []uint64, err error) {
	if len(b) == 0 || b[0] != envelopeFormat {
		return nil, nil, errEnvelope
	}
	count, n := binary.Uvarint(b[1:])
	if n <= 0 || count > maxMembers {
		return nil, nil, errEnvelope
	}
	b = b[1+n:]
	all = map[uint64]Member{}
	for range count {
		member, rest, err := readMember(b)
		if err != nil {
			return nil, nil, err
		}
		all[member.ID], b = member, rest
	}
	count, n = binary.Uvarint(b)
	if n <= 0 || count > maxRemoved || uint64(len(b)-n) != 8*count { //nolint:gosec // not negative
		return nil, nil, errEnvelope
	}
	for b = b[n:]; len(b) > 0; b = b[8:] {
		removed = append(removed, binary.LittleEndian.Uint64(b))
	}
	return all, removed, nil
}

func appendMember(b []byte, m Member) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.ID)
	if m.Learner {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	for _, text := range []string{m.Name, m.Addr} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

func readMember(b []byte) (m Member, rest []byte, err error) {
	if len(b) < 9 || b[8] > 1 {
		return m, nil, errEnvelope
	}
	m.ID, m.Learner = binary.LittleEndian.Uint64(b), b[8] == 1
	b = b[9:]
	for _, text := range []*string{&m.Name, &m.Addr} {
		length, n := binary.Uvarint(b)
		if n <= 0 || length > maxName || uint64(len(b)-n) < length { //nolint:gosec // not negative
			return m, nil, errEnvelope
		}
		*text, b = string(b[n:n+int(length)]), b[n+int(length):]
	}
	return m, b, nil
}
