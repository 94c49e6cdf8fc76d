// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

// Which way a collective takes is decided by its steps, which follow one after another: in a step a rank sends at most one message of
// up to stepBytes and receives at most one. Where two ways take as many, the one with fewer messages is taken while the messages are
// small, and the one with fewer copies or more overlap when they are not. TestStepsAndMessages compares with OpenMPI by the same measure.

// stepBytes is what a message may have to take a single step.
const stepBytes = 64 << 10

// units is how many steps a message takes.
func units(bytes int) int { return max(1, ceilDiv(bytes, stepBytes)) }

// doubled is the steps of a tree, or of an exchange between pairs, with messages of 1, 2, 4... blocks until there are n.
func doubled(n, block int) int {
	steps := 0
	for have := 1; have < n; have *= 2 {
		steps += units(min(have, n-have) * block)
	}
	return steps
}

// halved is the steps of a reduce-scatter in which positions exchange halves. A rank that stays out hands over all n blocks before
// and gets its own afterwards.
func halved(p positions, block int) int {
	steps := 0
	for count := p.power / 2; count > 0; count /= 2 {
		steps += units(p.first(count) * block)
	}
	if p.rest > 0 {
		steps += units((p.power+p.rest)*block) + units(block)
	}
	return steps
}

// chained is the steps of segments on their way through n ranks.
func chained(n, segments, size int) int { return (n - 2 + segments) * units(size) }
