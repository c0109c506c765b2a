# Which file is compiled for which instruction set. A target file is only ever entered after a run-time check of the CPU.
set(NINFER_X86 FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(NINFER_X86 TRUE)
endif()

function(ninfer_target_flags file flags)
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

if(NINFER_X86)
  ninfer_target_flags(native/targets/avx2.cpp "-mavx2;-mfma;-mf16c;-mbmi2;-O3")
  set(NINFER_AVX512_FLAGS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx2;-mfma;-mf16c;-mbmi2;-O3;-Wno-maybe-uninitialized;-Wno-uninitialized")
  ninfer_target_flags(native/targets/avx512_vnni.cpp "${NINFER_AVX512_FLAGS}")
  # Compilers that do not know AMX build the file without it, which makes the target absent.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mamx-int8" NINFER_HAS_AMX)
  if(NINFER_HAS_AMX)
    ninfer_target_flags(native/targets/amx.cpp
      "-mamx-tile;-mamx-int8;${NINFER_AVX512_FLAGS}")
  endif()
endif()
