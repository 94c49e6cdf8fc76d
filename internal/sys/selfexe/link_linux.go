// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package selfexe

// link leads to the file that runs, whatever its name is now. For a child that is being started it still leads to its parent's.
const link = "/proc/self/exe"
