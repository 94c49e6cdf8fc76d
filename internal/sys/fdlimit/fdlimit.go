// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package fdlimit says how many descriptors this process may have, and how many of them clients that are not known yet may take.
package fdlimit

// unknown is a limit that is common where none can be asked for.
const unknown = 1024

// Share returns one in part of the descriptors that this process may have open, but at least low and at most high.
func Share(part, low, high int) int { return min(max(soft()/part, low), high) }
