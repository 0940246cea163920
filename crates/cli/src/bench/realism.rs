//! `tollgate bench realism`: every check of every stream, and whether all did as they should.

use std::process::ExitCode;

use tollgate_bench::args::RealismArgs;

use crate::terminal;

/// Exit code where a stream failed or a control passed.
const UNREAL: u8 = 1;

pub(super) fn try_streams(args: &RealismArgs) -> anyhow::Result<ExitCode> {
    let realism = args.run()?;
    terminal::answer(realism.text.trim_end());
    Ok(if realism.as_it_should {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNREAL)
    })
}
