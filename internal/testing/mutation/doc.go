// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package mutation runs the tests of a package against its own source with mistakes in it: mutants. A test that passes
// although a rule of the protocol is missing is a test that does not look.
//
// The mutants of a package stand in its file testdata/mutants.txt, so that the source has only the protocol. They are put
// into a copy of the source, the test binary is built from that with the go command's option -overlay, and each run of it
// switches some of the mutants on.
//
// The file holds, for each mutant, its name, what is wrong, the test that finds it, and the lines to change:
//
//	mutant NoGrace: the references of a dead user end at once
//	found by TestSimulation -seeds.count 500
//	in Machine.grace
//	-	return m.opt.Grace
//	+	if mutants.NoGrace {
//	+		return 0
//	+	}
//	+	return m.opt.Grace
//
// Several tests may find it. A change may also stand in a type. A mutant without a "found by" is for tests that ask for
// it by name with [With]. Lines that begin with # are comments.
package mutation
