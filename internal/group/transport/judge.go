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
