// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

// Judge is a group's word on why it fails. A mesh on a wire that cannot tell a rank that died from one that has given the
// group up calls it with its own reason before it does anything that other ranks can notice, such as closing connections,
// and fails with what it returns: the reason that the first rank of the group has found.
//
// It asks the store, which takes at most half a second; a mesh holds no lock meanwhile. It may be called from any goroutine
// and any number of times; only the first call takes time.
type Judge func(err error) error

// Reason returns what the judge says about err. Without a judge it is err.
func (j Judge) Reason(err error) error {
	if j == nil {
		return err
	}
	return j(err)
}

// How is how a rank was lost.
type How uint8

// The ways.
const (
	// Died means that its process has ended, its connection broke or its heartbeat stopped: the group cannot go on.
	Died How = iota
	// Left means that it closed its end of the group: only what needs it fails.
	Left
	// Ended means that its connection ended on a wire without a shutdown message (a PyTorch rank on gloo's): it may have finished its
	// program or died. An engine that finds out later that it died says so in a second Loss.
	Ended
)

// String says how.
func (h How) String() string { return [...]string{"died", "left", "ended"}[h] }

// Loss is what an engine tells its group about a rank that is gone, whether or not an operation runs. Err is a *cohort.Error
// that names the rank, its host or process, and the reason.
//
// Engines call the function that their Config.OnLost holds from a goroutine that their Close waits for, without a lock held.
// It must not call Close, and it may be called before the function that made the engine has returned.
type Loss struct {
	Rank int
	How  How
	Err  error
}
