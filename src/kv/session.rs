//! The file of a saved session: the tokens of a sequence and the blocks that hold their K and V.
//!
//! ```text
//! magic[8]  version u32  head_crc u32
//! head_bytes  identity  vocabulary  block_bytes  n_blocks  n_tokens  model_len  kv_types_len  notes_len    each u64
//! model  kv_types  tokens u32 (n_tokens)  notes  block_crc u32 (n_blocks)                   up to head_bytes
//! block (n_blocks), block_bytes each                                                        up to the end
//! ```
//!
//! All numbers are little-endian. `head_crc` is the CRC-32 of everything from `head_bytes` up to the first block, so one
//! altered byte in the head makes the file unusable; one in a block costs that block and those after it, which can be
//! computed again from the tokens. Lengths are checked against the file before anything is allocated by them.
//!
//! `identity` is of everything beside the tokens that decides a block's bytes, `vocabulary` of what the token ids mean.
//! Both are made by `model::Fingerprint`, which is the same for every build and machine. The version is raised when
//! the layout of the file or of a block changes, and when the arithmetic does: a block of other arithmetic is not what
//! this program would have computed.
//!
//! Cost: a block is read, checked and copied into the pool, while it is in the CPU's cache. 4,000 tokens of SmolLM2-135M
//! (250 blocks, 88 MiB at F16) from the page cache take 75 ms of one core, 25 ms of it for reading and checking, the rest
//! for fresh memory (median of 15, two virtual cores; 165 ms by the clock while five other processes wanted them). INT8
//! takes half. Computing them takes a minute there.
//!
//! A file is written beside its place, synced, and renamed onto it: whatever happens meanwhile, the old one stays whole.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::layout::BLOCK_TOKENS;

const MAGIC: &[u8; 8] = b"sayfa-kv";
const VERSION: u32 = 1;
/// Magic, version, checksum and nine numbers.
const FIXED_BYTES: usize = 16 + 9 * 8;

/// What a session file says before its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Of the model, its RoPE settings, the KV types and their rotation: blocks of another one are of no use.
    pub identity: u64,
    /// Of the tokenizer: token ids of another one are of no use.
    pub vocabulary: u64,
    /// The model's file name and the KV types, for people.
    pub model: String,
    pub kv_types: String,
    pub tokens: Vec<u32>,
    /// What the command that saved it wants back.
    pub notes: Vec<u8>,
}

/// The blocks to save: `count` of them, or none where a sequence does not hold all its tokens.
pub struct Blocks<'a> {
    pub count: usize,
    pub bytes: usize,
    /// Fills its buffer with the contents of the block of this page.
    pub read: &'a mut dyn FnMut(usize, &mut [u8]) -> Result<()>,
}

/// Writes a session to `path`, readable by its owner only. A session that stands there is replaced at the very end;
/// anything else is left alone.
pub fn save(path: &Path, head: &Head, blocks: Blocks) -> Result<()> {
    let path = replaceable(path)?;
    let mut temporary = Temporary::beside(&path)?;
    let mut write = |file: &mut File| -> std::io::Result<()> {
        let mut checksums = vec![0; blocks.count];
        // The checksums come before the blocks, but are known after them.
        file.write_all(&encode(head, blocks.bytes, &checksums))?;
        let mut contents = vec![0; blocks.bytes];
        for (page, checksum) in checksums.iter_mut().enumerate() {
            (blocks.read)(page, &mut contents).map_err(std::io::Error::other)?;
            *checksum = crc32fast::hash(&contents);
            file.write_all(&contents)?;
        }
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&encode(head, blocks.bytes, &checksums))?;
        file.sync_all()
    };
    write(&mut temporary.file).with_context(|| format!("{}: the session could not be written", path.display()))?;
    temporary.put_in_place(&path)
}

/// Where a session may be written to: through symbolic links, but onto nothing that is no session.
fn replaceable(path: &Path) -> Result<PathBuf> {
    let Ok(found) = fs::metadata(path) else { return Ok(path.to_path_buf()) };
    ensure!(found.is_file(), "{} is no regular file: a session cannot be saved there", path.display());
    let mut start = Vec::new();
    let opened = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    opened.with_context(|| format!("{} cannot be read", path.display()))?;
    ensure!(
        start.is_empty() || start == MAGIC,
        "{} is there and no saved session: it is left as it is, save to another file",
        path.display()
    );
    fs::canonicalize(path).with_context(|| format!("{} cannot be found", path.display()))
}

/// A file that is being written, removed again unless it is put in its place.
struct Temporary {
    file: File,
    path: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> Result<Temporary> {
        let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
        let temporary = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // Of a process of the same number that was killed: nobody else writes it.
        let _ = fs::remove_file(&temporary);
        let file = options.open(&temporary).with_context(|| {
            format!("{}: the session cannot be saved, its folder takes no new file", path.display())
        })?;
        Ok(Temporary { file, path: temporary })
    }

    fn put_in_place(mut self, path: &Path) -> Result<()> {
        fs::rename(&self.path, path)
            .with_context(|| format!("{}: the saved session could not be put in place", path.display()))?;
        self.path = PathBuf::new();
        // So that the new name outlives a power cut; not every system can do that.
        if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn encode(head: &Head, block_bytes: usize, checksums: &[u32]) -> Vec<u8> {
    let sizes = [checksums.len(), head.tokens.len(), head.model.len(), head.kv_types.len(), head.notes.len()];
    let head_bytes =
        FIXED_BYTES + head.model.len() + head.kv_types.len() + head.notes.len() + 4 * (sizes[0] + sizes[1]);
    let numbers = [head_bytes as u64, head.identity, head.vocabulary, block_bytes as u64];
    let mut out = Vec::with_capacity(head_bytes);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend([0; 4]);
    numbers.into_iter().chain(sizes.map(|size| size as u64)).for_each(|number| out.extend(number.to_le_bytes()));
    out.extend(head.model.as_bytes());
    out.extend(head.kv_types.as_bytes());
    head.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
    out.extend(&head.notes);
    checksums.iter().for_each(|checksum| out.extend(checksum.to_le_bytes()));
    let head_crc = crc32fast::hash(&out[16..]);
    out[12..16].copy_from_slice(&head_crc.to_le_bytes());
    out
}

/// An open session file whose head is sound; its blocks are checked one by one as they are read.
#[derive(Debug)]
pub struct Saved {
    pub head: Head,
    path: PathBuf,
    file: File,
    block_bytes: usize,
    checksums: Vec<u32>,
    next: usize,
    /// Of the file after the blocks read so far.
    rest_bytes: u64,
    contents: Vec<u8>,
}

impl Saved {
    /// `None`: there is no such file, or it is empty.
    pub fn open(path: &Path) -> Result<Option<Saved>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(|| format!("{} cannot be opened", path.display()))?,
        };
        let found = file.metadata().with_context(|| format!("{} cannot be read", path.display()))?;
        ensure!(found.is_file(), "{} is no regular file, so it holds no session", path.display());
        if found.len() == 0 {
            return Ok(None);
        }
        let head = read_head(&mut file, found.len()).with_context(|| path.display().to_string())?;
        let (head, block_bytes, checksums, rest_bytes) = head;
        let (next, contents) = (0, Vec::new());
        Ok(Some(Saved { head, path: path.to_path_buf(), file, block_bytes, checksums, next, rest_bytes, contents }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn n_blocks(&self) -> usize {
        self.checksums.len()
    }

    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The contents of the next block, which there must be. An error names the block.
    pub fn next_block(&mut self) -> Result<&[u8]> {
        let (number, total, checksum) = (self.next + 1, self.n_blocks(), self.checksums[self.next]);
        let needed = self.block_bytes as u64;
        ensure!(self.rest_bytes >= needed, "block {number} of {total} is cut off");
        self.contents.resize(self.block_bytes, 0);
        self.file
            .read_exact(&mut self.contents)
            .with_context(|| format!("block {number} of {total} cannot be read"))?;
        ensure!(
            crc32fast::hash(&self.contents) == checksum,
            "block {number} of {total} is damaged: its checksum is not that of the file"
        );
        self.next += 1;
        self.rest_bytes -= needed;
        Ok(&self.contents)
    }
}

/// Head, bytes of a block, checksums of the blocks, bytes of the file after the head.
type Opened = (Head, usize, Vec<u32>, u64);

fn read_head(file: &mut File, file_bytes: u64) -> Result<Opened> {
    let mut bytes = Vec::new();
    file.take(FIXED_BYTES as u64).read_to_end(&mut bytes).context("the session cannot be read")?;
    ensure!(bytes.len() >= MAGIC.len() && bytes.starts_with(MAGIC), "this is no saved session of sayfa");
    ensure!(bytes.len() == FIXED_BYTES, "the session is cut off: its head does not fit into {file_bytes} bytes");
    let version = u32_at(&bytes, 8);
    ensure!(
        version == VERSION,
        "the session has format version {version}, this program reads and writes {VERSION}: delete it, or use the \
         program that wrote it"
    );
    let number = |n: usize| u64_at(&bytes, 16 + 8 * n);
    let head_bytes = number(0);
    ensure!(
        head_bytes >= FIXED_BYTES as u64 && head_bytes <= file_bytes,
        "the session is cut off or damaged: its head claims {head_bytes} of the file's {file_bytes} bytes"
    );
    file.take(head_bytes - FIXED_BYTES as u64).read_to_end(&mut bytes).context("the session cannot be read")?;
    if crc32fast::hash(&bytes[16..]) != u32_at(&bytes, 12) {
        bail!("the session's head is damaged: its checksum does not fit, so its tokens cannot be trusted");
    }
    parse_head(&bytes, file_bytes).context("the session's head contradicts itself")
}

/// A head whose checksum is right; that its numbers fit each other is still to be shown.
fn parse_head(bytes: &[u8], file_bytes: u64) -> Result<Opened> {
    let number = |n: usize| u64_at(bytes, 16 + 8 * n);
    let (n_blocks, n_tokens) = (number(4), number(5));
    let mut rest = &bytes[FIXED_BYTES..];
    let mut take = |count: u64, size: u64| -> Result<&[u8]> {
        let len = count.checked_mul(size).filter(|&len| len <= rest.len() as u64);
        let len = len.with_context(|| format!("{count} entries do not fit into its {} bytes", bytes.len()))?;
        let (taken, left) = rest.split_at(len as usize);
        rest = left;
        Ok(taken)
    };
    let model = String::from_utf8(take(number(6), 1)?.to_vec())?;
    let kv_types = String::from_utf8(take(number(7), 1)?.to_vec())?;
    let tokens = numbers(take(n_tokens, 4)?);
    let notes = take(number(8), 1)?.to_vec();
    let checksums = numbers(take(n_blocks, 4)?);
    ensure!(rest.is_empty(), "{} bytes are left over", rest.len());
    let wanted_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    ensure!(
        checksums.is_empty() || checksums.len() == wanted_blocks,
        "{} blocks for {} tokens, there must be {wanted_blocks}",
        checksums.len(),
        tokens.len()
    );
    let rest_bytes = file_bytes - bytes.len() as u64;
    let blocks_bytes = n_blocks.checked_mul(number(3));
    ensure!(
        blocks_bytes.is_some_and(|blocks| rest_bytes <= blocks),
        "{rest_bytes} bytes follow it, its {n_blocks} blocks have {} each",
        number(3)
    );
    let block_bytes = usize::try_from(number(3))?;
    let head = Head { identity: number(1), vocabulary: number(2), model, kv_types, tokens, notes };
    Ok((head, block_bytes, checksums, rest_bytes))
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the fixed part"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the fixed part"))
}
