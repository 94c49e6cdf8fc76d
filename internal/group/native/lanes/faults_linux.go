// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import "errors"

// Sever ends all connections without a shutdown message, as the death of the process would. It is for tests.
func (m *mesh) Sever() {
	m.first.Sever()
	for _, v := range m.others {
		v.lane.Sever()
	}
}

// CutLane ends one connection to one rank without a shutdown message. It is for tests.
func (m *mesh) CutLane(lane, rank int) {
	if lane == 0 {
		m.first.Cut(rank)
	} else {
		m.others[lane-1].lane.Cut(rank)
	}
}

// Pace limits the rate of each connection. It is for benchmarks.
func (m *mesh) Pace(rate int) error {
	err := m.first.Pace(rate)
	for _, v := range m.others {
		err = errors.Join(err, v.lane.Pace(rate))
	}
	return err
}
